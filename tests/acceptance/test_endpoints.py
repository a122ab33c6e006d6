"""An endpoint on the whole service: made, used, changed under load, drained and deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.polling import eventually
from tests.support.service import CHECKPOINT, Service, diffusion

pytestmark = pytest.mark.timeout(900)

OWN = "/v1/endpoints/portraits"
PATIENCE_S = 240.0
"""A start of an engine takes long on a busy machine."""
FILE = """
endpoints:
  default:
    max_steps: 60
  declared:
    gpus: 0
    cpus: 0.5
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "endpoints.yaml").write_text(FILE)
    service = Service(
        tmp_path / "data",
        DARKROOM_ENDPOINTS_FILE=str(tmp_path / "endpoints.yaml"),
        DARKROOM_WORKER_REPLACE_S="20",
        DARKROOM_MIN_WORKERS="0",
    )
    try:
        service.start()
        yield service
    finally:
        service.close()


def shown(service: Service) -> dict[str, Any]:
    body: dict[str, Any] = service.http.get(OWN).json()
    return body


def submit(service: Service, count: int, *, steps: int) -> list[str]:
    """Jobs whose seeds differ."""
    bodies = [diffusion(steps=steps, seed=seed) for seed in range(count)]
    return [service.submit("diffusion", body, endpoint="portraits") for body in bodies]


def is_rolled(service: Service) -> bool:
    workers = shown(service).get("workers")
    return bool(workers) and all(
        worker["is_current"] and worker["state"] == "ready" for worker in workers
    )


async def test_an_endpoint_from_its_making_to_its_end(service: Service) -> None:
    is_declared(service)
    is_made_and_used(service)
    await is_changed_under_load(service)
    await is_drained(service)
    await is_deleted(service)
    assert service.disagreements() == ""


def is_declared(service: Service) -> None:
    """What the file says is there."""
    listed = service.http.get("/v1/endpoints").json()["endpoints"]
    told = [(each["id"], each["max_steps"]) for each in listed]
    assert told == [("declared", 10_000), ("default", 60)]


def is_made_and_used(service: Service) -> None:
    """Made by the command line, used over HTTP."""
    members = ("gpus=0", "cpus=0.5", "min_workers=1", "jobs_per_worker=1", "max_queued=20")
    made = service.command("endpoints", "create", "portraits", *members)
    assert json.loads(made.stdout)["revision"] == 1
    unknown = service.http.post("/diffusion/v1/generate?endpoint=none", json=diffusion())
    assert unknown.status_code == 404
    for job_id in submit(service, 2, steps=2):
        assert service.ended(job_id)["status"] == 1
    body = shown(service)
    assert body["warm_checkpoints"] == [CHECKPOINT]
    assert body["rate_per_s"] > 0


async def is_changed_under_load(service: Service) -> None:
    """Its worker is replaced, and each job completes at its first attempt, as it was accepted."""
    jobs = submit(service, 8, steps=60)
    change = {"channels_last": True, "max_steps": 50, "revision": 1}
    changed = service.http.patch(OWN, json=change)
    assert changed.status_code == 200, changed.text
    await eventually(lambda: is_rolled(service), within_s=PATIENCE_S)
    for job_id in jobs:
        assert service.ended(job_id)["status"] == 1
        assert service.event_names(job_id).count("started") == 1


async def is_drained(service: Service) -> None:
    """No more jobs, no worker; then both again."""
    service.command("endpoints", "drain", "portraits")
    await eventually(lambda: shown(service)["workers"] == [], within_s=PATIENCE_S)
    refused = service.http.post("/diffusion/v1/generate?endpoint=portraits", json=diffusion())
    assert refused.json()["error"]["type"] == "endpoint_draining"
    service.command("endpoints", "drain", "portraits", "--undo")
    await eventually(lambda: is_rolled(service), within_s=PATIENCE_S)


async def is_deleted(service: Service) -> None:
    """What waits then fails and says so, what runs ends as usual, and nothing is left."""
    jobs = submit(service, 6, steps=50)
    await eventually(lambda: shown(service)["running"] == 1, within_s=PATIENCE_S)
    service.command("endpoints", "delete", "portraits", "--drain", "0")
    ends = [service.ended(job_id) for job_id in jobs]
    failed = [end for end in ends if end["status"] == 2]
    assert failed
    assert all("was deleted while this job waited" in end["message"] for end in failed)
    await eventually(lambda: service.http.get(OWN).status_code == 404, within_s=PATIENCE_S)
    with service.cluster():
        assert service.actors("worker:portraits") == []
