"""How many requests of an owner wait for results at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from events.decisions import Cancel
from events.memory.log import MemoryLog, MemorySubscription
from serve_app.access.waits import Waits
from serve_app.refusals import TooManyWaits
from tests.support.edge import running_edge
from tests.support.generate_bodies import diffusion_body


class WatchedLog(MemoryLog):
    """Says when somebody waits for a job."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = asyncio.Event()

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[MemorySubscription]:
        async with super().watch(job_id) as subscription:
            self.watched.set()
            yield subscription


async def submitted(client: httpx.AsyncClient) -> str:
    answer = await client.post("/diffusion/v1/generate", json=diffusion_body())
    return str(answer.json()["request_id"])


def result(job_id: str, *, wait_s: float = 0) -> str:
    return f"/diffusion/v1/result?request_id={job_id}&wait={wait_s}"


def test_each_owner_waits_so_often() -> None:
    waits = Waits(2)
    with waits.hold("alice"):
        with waits.hold("alice"), pytest.raises(TooManyWaits), waits.hold("alice"):
            pass
        with waits.hold("alice"), waits.hold("bob"):
            pass


def test_0_is_any_number() -> None:
    waits = Waits(0)
    with waits.hold("alice"), waits.hold("alice"):
        pass


async def test_a_wait_too_many_is_refused(tmp_path: Path) -> None:
    log = WatchedLog()
    async with (
        running_edge(tmp_path, log=log, owner_max_waits=1) as edge,
        await edge.client("alice") as alice,
        await edge.client("alice") as another_key,
        await edge.client("bob") as bob,
    ):
        job_id, ended = await submitted(alice), await submitted(alice)
        await edge.run(ended)
        waiting = asyncio.create_task(alice.get(result(job_id, wait_s=30)))
        await log.watched.wait()
        answer = await another_key.get(result(job_id, wait_s=30))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
        assert answer.json()["error"]["type"] == "too_many_waits"
        # What is answered at once is no wait, and other owners have waits of their own.
        assert (await another_key.get(result(job_id))).json()["status"] == 0
        assert (await another_key.get(result(ended, wait_s=30))).json()["status"] == 1
        assert (await bob.get(result(await submitted(bob), wait_s=0.05))).status_code == 200
        await edge.execute(job_id, Cancel())
        assert (await waiting).json()["status"] == 2
        later = await another_key.get(result(await submitted(alice), wait_s=0.05))
        assert later.status_code == 200
