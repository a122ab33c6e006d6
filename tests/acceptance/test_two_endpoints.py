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
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.polling import eventually
from tests.support.service import CHECKPOINT, Service, diffusion

BACKLOG = int(os.environ.get("BACKLOG", "20"))
PATIENCE_S = 400.0
LONG: dict[str, Any] = {"steps": 80, "width": 256, "height": 256}
MEMBERS: dict[str, dict[str, Any]] = {
    "alice": {"checkpoints": [CHECKPOINT], "max_steps": 80},
    "bob": {
        "checkpoints": ["darkroom-shapes.safetensors"],
        "max_steps": 90,
        "job_timeout_s": 1800,
    },
}

pytestmark = pytest.mark.timeout(1200 + BACKLOG)


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
        common = {"id": name, "gpus": 0, "jobs_per_worker": 1, "max_queued": BACKLOG}
        answer = self.http.post("/v1/endpoints", json=common | MEMBERS[name])
        assert answer.status_code == httpx.codes.CREATED, answer.text

    def submit(self, *, to: Owner | None = None, **changes: Any) -> httpx.Response:
        checkpoint = MEMBERS[self.name]["checkpoints"][0]
        body = diffusion(**{"sd_model_checkpoint": checkpoint} | changes)
        query = {"endpoint": (to or self).name}
        return self.http.post("/diffusion/v1/generate", json=body, params=query)

    def shown(self) -> dict[str, Any]:
        body: dict[str, Any] = self.http.get(f"/v1/endpoints/{self.name}").json()
        return body

    def end(self, request_id: str) -> dict[str, Any]:
        query = {"request_id": request_id}

        def ended() -> dict[str, Any] | None:
            result = self.http.get("/diffusion/v1/result", params=query).json()
            return result if result.get("status") else None

        return until(ended)

    def run_short_ones(self, *, first_seed: int) -> str:
        """One after the other; the seconds that they took."""
        seconds = []
        for seed in range(first_seed, first_seed + 5):
            began = time.monotonic()
            assert self.end(accepted(self.submit(steps=2, seed=seed)))["status"] == 1
            seconds.append(f"{time.monotonic() - began:.2f}")
        return ", ".join(seconds)


def accepted(answer: httpx.Response) -> str:
    assert answer.status_code == httpx.codes.ACCEPTED, answer.text
    return str(answer.json()["request_id"])


def test_an_owner_does_not_notice_the_backlog_of_another(endpoints: Service) -> None:
    busy, calm = Owner(endpoints, "alice"), Owner(endpoints, "bob")
    for owner, other in ((busy, calm), (calm, busy)):
        keeps_to_its_own(owner, other)
        assert owner.end(accepted(owner.submit(steps=2)))["status"] == 1  # its engine is there
    alone_s = calm.run_short_ones(first_seed=0)
    backlog = [accepted(busy.submit(**LONG, seed=seed)) for seed in range(BACKLOG)]
    refused = until(lambda: is_full(busy))
    assert int(refused.headers["Retry-After"]) >= 1
    beside_s = calm.run_short_ones(first_seed=5)
    sys.stdout.write(f"\n{calm.name}: {alone_s} s; beside {BACKLOG} jobs: {beside_s} s\n")
    shown = busy.shown()
    assert shown["running"] == 1
    assert shown["queued"] > BACKLOG / 2
    assert calm.shown()["queued"] == 0
    busy.http.delete(f"/v1/endpoints/{busy.name}", params={"drain_s": 0})
    assert "was deleted" in busy.end(backlog[-1])["message"]
    for owner in (busy, calm):
        owner.http.close()


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
