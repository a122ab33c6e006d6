"""One owner's backlog delays another's single job by what runs and one turn, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from events.ids import lane_of
from tests.support.polling import eventually
from tests.support.service import Service, diffusion

pytestmark = pytest.mark.timeout(3600)

BACKLOG = int(os.environ.get("DARKROOM_TEST_BACKLOG", "300"))
SLOTS = 2
TURN = 10
"""Jobs of a turn: each costs as little as one can."""
CROWD = "crowd"
SINGLE = next(name for name in map(str, count()) if lane_of(name) == lane_of(CROWD))
"""They share a lane of the queue."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(
        tmp_path / "data",
        DARKROOM_JOBS_PER_WORKER=str(SLOTS),
        DARKROOM_OWNER_SLOTS_KEPT_FREE="0",
        DARKROOM_OWNER_MAX_OPEN_JOBS="0",
        DARKROOM_OWNER_RATE_PER_S="0",
    )
    try:
        service.start()
        yield service
    finally:
        service.close()


class Caller:
    """An owner with a key of their own."""

    def __init__(self, service: Service, owner: str) -> None:
        key, _ = service.command("keys", "create", owner).stdout.split()
        self._http = service.http
        self._headers = {"Authorization": f"Bearer {key}"}

    def submit(self, jobs: int) -> None:
        def submit(seed: int) -> None:
            body = diffusion(steps=1, seed=seed)
            answer = self._http.post("/diffusion/v1/generate", json=body, headers=self._headers)
            assert answer.status_code == 202, answer.text

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(submit, range(jobs)))

    def jobs(self) -> list[dict[str, Any]]:
        """All of them, newest first."""
        jobs: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": 100}
        while True:
            page = self._http.get("/v1/jobs", params=query, headers=self._headers).json()
            jobs += page["jobs"]
            if page.get("next_cursor") is None:
                return jobs
            query["cursor"] = page["next_cursor"]


async def test_a_single_job_waits_for_one_turn(service: Service) -> None:
    service.ended(service.submit("diffusion", diffusion(steps=1)))  # the engine is up
    crowd, single = Caller(service, CROWD), Caller(service, SINGLE)
    crowd.submit(BACKLOG)
    single.submit(1)
    await eventually(  # the list may be behind
        lambda: [each for each in single.jobs() if each.get("ended_at")], within_s=300
    )
    [job] = single.jobs()
    began = [each["started_at"] for each in crowd.jobs() if each.get("started_at")]
    passed = [time for time in began if job["created_at"] < time < job["started_at"]]
    assert len(passed) <= SLOTS + TURN
    assert len(began) < BACKLOG  # others waited all the while
