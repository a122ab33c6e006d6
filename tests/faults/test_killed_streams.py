"""Whoever watches goes on where they were, whichever replica answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(1200)

_PATIENCE_S = 120.0


def events(answer: httpx.Response) -> Iterator[tuple[int, str]]:
    """Id and job of each stored event, until the stream ends or breaks off."""
    subject = ""
    try:
        for line in answer.iter_lines():
            name, _, value = line.partition(": ")
            if name == "data":
                subject = json.loads(value).get("subject", "")
            elif name == "id":
                yield int(value), subject
    except httpx.TransportError:
        return


def test_a_killed_replica_costs_a_stream_nothing(chaos: Service) -> None:
    """Every replica is killed, so the one that goes on knows nothing of what was before."""
    jobs = [chaos.submit("diffusion", diffusion(steps=40)) for _ in range(4)]
    seen: list[tuple[int, str]] = []
    is_killed = False
    give_up_at = time.monotonic() + _PATIENCE_S
    while len(seen) < 4 * len(jobs):  # submitted, started, image_stored, completed
        assert time.monotonic() < give_up_at, seen
        after = str(seen[-1][0]) if seen else "0"
        try:
            with chaos.http.stream("GET", "/v1/events", headers={"Last-Event-ID": after}) as answer:
                for event in events(answer):
                    if event[1] in jobs:
                        seen.append(event)
                    if len(seen) > 5 and not is_killed:
                        is_killed = True
                        for replica in chaos.processes("ray::ServeReplica:darkroom:Api"):
                            replica.kill()
                    if len(seen) == 4 * len(jobs):
                        break
        except httpx.TransportError:
            time.sleep(0.2)
    assert is_killed
    assert [place for place, _ in seen] == sorted({place for place, _ in seen})
    stored = {job_id: chaos.event_names(job_id) for job_id in jobs}
    assert {job_id: sum(each == job_id for _, each in seen) for job_id in jobs} == {
        job_id: len(names) for job_id, names in stored.items()
    }
