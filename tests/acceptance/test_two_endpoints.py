"""Two endpoints of two owners beside each other: neither notices the other's backlog.

The owners make them by keys of their own. A backlog is of jobs that take long, one at a time, so
that it lasts while the other owner's short jobs are done, however slow the machine is.
`BACKLOG` says how many jobs it has. How long the short jobs took without it and beside it is
written out, and not judged: both engines share the processors of this machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.polling import eventually
from tests.support.service import CHECKPOINT, Service, diffusion

BACKLOG = int(os.environ.get("BACKLOG", "20"))
SHORT_JOBS = 5
PATIENCE_S = 400.0
LONG: dict[str, Any] = {"steps": 80, "width": 256, "height": 256}
SHAPES = "darkroom-shapes.safetensors"
MEMBERS: dict[str, dict[str, Any]] = {
    "alice": {"checkpoints": [CHECKPOINT], "max_steps": 80},
    "bob": {"checkpoints": [SHAPES], "max_steps": 90, "job_timeout_s": 1800},
}

pytestmark = pytest.mark.timeout(1200 + BACKLOG)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("two-endpoints")
    service = Service(
        folder / "data",
        DARKROOM_MIN_WORKERS="0",
        DARKROOM_OWNER_MAX_OPEN_JOBS="0",
        DARKROOM_OWNER_RATE_PER_S="0",
    )
    try:
        service.start()
        yield service
    finally:
        service.close()


def until(check: Callable[[], Any]) -> Any:
    return asyncio.run(eventually(check, within_s=PATIENCE_S))


class Owner:
    """With an endpoint that has the owner's name and takes one job at a time."""

    def __init__(self, service: Service, name: str) -> None:
        self.name = name
        scopes = ["generate", "read", "endpoints"]
        made = service.http.post("/v1/keys", json={"owner": name, "scopes": scopes}).json()
        headers = {"Authorization": f"Bearer {made['key']}"}
        self.http = httpx.Client(base_url=service.url, headers=headers, timeout=30, trust_env=False)

    def make(self) -> None:
        common = {"id": self.name, "gpus": 0, "jobs_per_worker": 1, "max_queued": BACKLOG}
        made = self.http.post("/v1/endpoints", json=common | MEMBERS[self.name])
        assert made.status_code == httpx.codes.CREATED, made.text

    def submit(self, *, to: Owner | None = None, **changes: Any) -> httpx.Response:
        checkpoint = MEMBERS[self.name]["checkpoints"][0]
        body = diffusion(**{"sd_model_checkpoint": checkpoint} | changes)
        query = {"endpoint": (to or self).name}
        return self.http.post("/diffusion/v1/generate", json=body, params=query)

    def shown(self) -> dict[str, Any]:
        body: dict[str, Any] = self.http.get(f"/v1/endpoints/{self.name}").json()
        return body

    def result(self, request_id: str) -> dict[str, Any]:
        query = {"request_id": request_id}
        body: dict[str, Any] = self.http.get("/diffusion/v1/result", params=query).json()
        return body

    def run(self, **changes: Any) -> dict[str, Any]:
        """The result of a short job."""
        request_id = accepted(self.submit(steps=2, **changes))
        return self.end(request_id)

    def run_short_ones(self, *, first_seed: int) -> str:
        """One after the other; the seconds that they took."""
        seconds = []
        for seed in range(first_seed, first_seed + SHORT_JOBS):
            began = time.monotonic()
            assert self.run(seed=seed)["status"] == 1
            seconds.append(f"{time.monotonic() - began:.2f}")
        return ", ".join(seconds)

    def end(self, request_id: str) -> dict[str, Any]:
        until(lambda: self.result(request_id).get("status"))
        return self.result(request_id)

    def delete(self) -> None:
        self.http.delete(f"/v1/endpoints/{self.name}", params={"drain_s": 0})
        until(lambda: self.http.get(f"/v1/endpoints/{self.name}").status_code == 404)


def accepted(answer: httpx.Response) -> str:
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    return str(answer.json()["request_id"])


@pytest.fixture(scope="module")
def owners(service: Service) -> Iterator[dict[str, Owner]]:
    owners = {name: Owner(service, name) for name in MEMBERS}
    yield owners
    for owner in owners.values():
        owner.http.close()


@pytest.mark.parametrize(("busy_name", "calm_name"), [("alice", "bob"), ("bob", "alice")])
def test_neither_owner_notices_the_backlog_of_the_other(
    owners: dict[str, Owner], busy_name: str, calm_name: str
) -> None:
    busy, calm = owners[busy_name], owners[calm_name]
    for owner, other in ((busy, calm), (calm, busy)):
        owner.make()
        keeps_to_its_own(owner, other)
    for owner in (busy, calm):
        assert owner.run()["status"] == 1  # its engine is there from here on
    alone_s = calm.run_short_ones(first_seed=0)
    backlog = [accepted(busy.submit(**LONG, seed=seed)) for seed in range(BACKLOG)]
    refused = until(lambda: is_full(busy))
    assert int(refused.headers["Retry-After"]) >= 1
    beside_s = calm.run_short_ones(first_seed=SHORT_JOBS)
    sys.stdout.write(f"\n{calm_name}: {alone_s} s; beside {BACKLOG} jobs: {beside_s} s\n")
    shown = busy.shown()
    assert shown["running"] == 1
    assert shown["queued"] > BACKLOG / 2
    assert calm.shown()["queued"] == 0
    busy.delete()
    assert "was deleted" in busy.end(backlog[-1])["message"]
    calm.delete()


def keeps_to_its_own(owner: Owner, other: Owner) -> None:
    """Its limits are its own, and it takes nobody else's jobs."""
    steps = MEMBERS[owner.name]["max_steps"]
    assert owner.submit(steps=steps + 1).status_code == 400
    foreign = MEMBERS[other.name]["checkpoints"][0]
    assert owner.submit(sd_model_checkpoint=foreign).status_code == 400
    assert other.submit(to=owner).status_code == 404
    assert owner.shown()["max_steps"] == steps


def is_full(owner: Owner) -> httpx.Response | None:
    """The refusal of one more job; its length is known a second later."""
    answer = owner.submit(**LONG)
    if answer.status_code == httpx.codes.ACCEPTED:
        return None
    assert answer.json()["error"]["type"] == "queue_full", answer.text
    return answer
