"""A rolling update and a rollback: old and new processes side by side, and no job is lost."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from examples.receiver import Receiver
from tests.skew.conftest import Versions
from tests.support.polling import eventually
from tests.support.service import Service, diffusion, workflow
from tests.support.subscriber import stored_events

pytestmark = pytest.mark.timeout(1200)

ENDS = {"completed", "failed", "cancelled"}
LONG = {"steps": 150, "width": 128, "height": 128}
Jobs = dict[str, str]
"""Flavours by id."""


def submit_each(service: Service) -> Jobs:
    return {
        service.submit("diffusion", diffusion(steps=1)): "diffusion",
        service.submit("workflow", workflow(steps=1)): "workflow",
    }


def check_ended(jobs: Jobs, *services: Service) -> None:
    """Check that both services report every job as completed."""
    for request_id, flavour in jobs.items():
        results = [service.ended(request_id, flavour) for service in services]
        assert [result["status"] for result in results] == [1] * len(services), results
        images = [[each["seed"] for each in result["results"]] for result in results]
        assert images == [images[0]] * len(services)


def check_histories(jobs: Jobs, nats_url: str) -> None:
    for request_id in jobs:
        events: list[dict[str, Any]] = asyncio.run(stored_events(nats_url, request_id))
        versions = [int(event["sequence"]) for event in events]
        assert versions == list(range(1, len(events) + 1))
        names = [event["type"].split(".")[-2] for event in events]
        assert [name for name in names if name in ENDS] == ["completed"], names


def check_read_model(service: Service) -> None:
    """Rebuild the read model, because a row that both versions wrote may differ from the events."""
    verified = service.command("verify", "--json", check=False)
    assert {each["kind"] for each in json.loads(verified.stdout)} <= {"row_differs"}
    service.command("rebuild")
    verified = service.command("verify", "--json", check=False)
    assert json.loads(verified.stdout) == [], verified.stderr


def use_key(service: Service, key: str) -> None:
    service.http.headers["Authorization"] = f"Bearer {key}"


def test_no_job_is_lost_between_two_versions(versions: Versions) -> None:
    old, new = versions.old, versions.new
    jobs: Jobs = {}
    old.start()
    key, secret = old.command("keys", "create", "admin").stdout.split()
    use_key(old, key)
    jobs |= submit_each(old)
    check_ended(jobs, old)
    with Receiver(secret) as receiver:
        # The update: the new version starts beside the old one, which dispatches on.
        first = old.submit("diffusion", diffusion(**LONG), callback_url=receiver.url)
        jobs[first] = "diffusion"
        new.start()
        use_key(new, key)
        jobs |= submit_each(old) | submit_each(new)
        check_ended(jobs, old, new)
        # The old version goes in the middle of a job.
        second = old.submit("diffusion", diffusion(**LONG), callback_url=receiver.url)
        jobs[second] = "diffusion"
        asyncio.run(eventually(lambda: "progress" in old.result(second)))
        old.stop()
        jobs |= submit_each(new)
        check_ended(jobs, new)
        called_back = {json.loads(receiver.bodies.get(timeout=60))["request_id"] for _ in range(2)}
        assert called_back == {first, second}
    check_read_model(new)
    # The rollback.
    new.stop()
    old.start()
    use_key(old, key)
    jobs |= submit_each(old)
    check_ended(jobs, old)
    check_histories(jobs, versions.nats_url)
