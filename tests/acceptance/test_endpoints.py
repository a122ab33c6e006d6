"""An endpoint on the whole service: made, used, changed under load, drained and deleted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.polling import eventually
from tests.support.service import CHECKPOINT, Service, diffusion

pytestmark = pytest.mark.timeout(1200)

OWN = "/v1/endpoints/portraits"
PATIENCE_S = 400.0
"""A start of an engine takes long on a busy machine."""


def until(check: Callable[[], Any]) -> None:
    asyncio.run(eventually(check, within_s=PATIENCE_S))


def shown(service: Service) -> dict[str, Any]:
    """While nobody dispatches it, it has no worker that anybody knows of."""
    body: dict[str, Any] = service.http.get(OWN).json()
    return {"workers": None} | body


def submit(service: Service, count: int, **changes: Any) -> list[str]:
    """Jobs whose seeds differ."""
    bodies = [diffusion(**changes, seed=seed) for seed in range(count)]
    return [service.submit("diffusion", body, endpoint="portraits") for body in bodies]


def is_rolled(service: Service) -> bool:
    workers = shown(service)["workers"]
    return bool(workers) and all(
        worker["is_current"] and worker["state"] == "ready" for worker in workers
    )


def worker_of(service: Service, job_id: str) -> str:
    """Which one a job that has ended ran on, at its one attempt."""
    (started,) = (each for each in service.events(job_id) if ".started." in each["type"])
    name: str = started["data"]["actor"]
    return name.partition(":job:")[0]


def test_the_endpoints_of_the_file_are_there(endpoints: Service) -> None:
    listed = endpoints.http.get("/v1/endpoints").json()["endpoints"]
    told = {each["id"]: each["max_steps"] for each in listed}
    assert told | {"declared": 10_000, "default": 60} == told


def test_an_endpoint_from_its_making_to_its_end(endpoints: Service) -> None:
    is_made_and_used(endpoints)
    is_changed_under_load(endpoints)
    is_drained(endpoints)
    is_deleted(endpoints)
    assert endpoints.disagreements() == ""


def is_made_and_used(service: Service) -> None:
    """Made by the command line, used over HTTP."""
    members = ("gpus=0", "cpus=0.5", "min_workers=1", "jobs_per_worker=1", "max_queued=20")
    made = service.command("endpoints", "create", "portraits", *members)
    assert json.loads(made.stdout)["revision"] == 1
    unknown = service.http.post("/diffusion/v1/generate?endpoint=none", json=diffusion())
    assert unknown.status_code == 404
    for job_id in submit(service, 2, steps=2):
        assert service.ended(job_id)["status"] == 1
    until(lambda: shown(service).get("rate_per_s"))
    until(lambda: shown(service)["warm_checkpoints"] == [CHECKPOINT])


def is_changed_under_load(service: Service) -> None:
    """Its worker is replaced, and each job completes at its one attempt, as it was accepted.

    There are jobs before, while and after that.
    """
    jobs = submit(service, 8, steps=60)
    change = {"channels_last": True, "max_steps": 50, "revision": 1}
    changed = service.http.patch(OWN, json=change)
    assert changed.status_code == 200, changed.text
    for job_id in jobs:
        assert service.ended(job_id)["status"] == 1
    old = worker_of(service, jobs[0])
    while worker_of(service, jobs[-1]) == old:
        jobs += submit(service, 1, steps=50)
        assert service.ended(jobs[-1])["status"] == 1
    until(lambda: is_rolled(service))
    assert len({worker_of(service, job_id) for job_id in jobs}) == 2


def is_drained(service: Service) -> None:
    """No more jobs, no worker; then both again."""
    service.command("endpoints", "drain", "portraits")
    until(lambda: shown(service)["workers"] == [])
    refused = service.http.post("/diffusion/v1/generate?endpoint=portraits", json=diffusion())
    assert refused.json()["error"]["type"] == "endpoint_draining"
    service.command("endpoints", "drain", "portraits", "--undo")
    until(lambda: is_rolled(service))


def is_deleted(service: Service) -> None:
    """What waits then fails and says so, what runs ends as usual, and nothing is left."""
    jobs = submit(service, 18, steps=50, width=256, height=256)
    until(lambda: shown(service)["workers"] and shown(service)["running"] == 1)
    service.command("endpoints", "delete", "portraits", "--drain", "0")
    ends = [service.ended(job_id) for job_id in jobs]
    assert ends[0]["status"] == 1
    assert ends[-1]["status"] == 2
    failed = [end for end in ends if end["status"] == 2]
    assert all("was deleted while this job waited" in end["message"] for end in failed)
    until(lambda: service.http.get(OWN).status_code == 404)
    with service.cluster():
        assert service.actors("worker:portraits") == []
