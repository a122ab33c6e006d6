"""How many requests of an owner wait for results at the same time."""

from __future__ import annotations

import asyncio

import pytest

from events.decisions import Cancel
from serve_app.access.owner_limits import Waits
from serve_app.refusals import TooManyWaits
from tests.support.edge import Client, Edge, submit
from tests.support.failing_log import FailingLog


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


@pytest.mark.edge(owner_max_waits=1)
async def test_a_wait_too_many_is_refused(
    edge: Edge, client: Client, bob: Client, log: FailingLog
) -> None:
    async with await edge.client("alice") as another_key:
        job_id, ended = await submit(client), await submit(client)
        await edge.run(ended)
        waiting = asyncio.create_task(client.get(result(job_id, wait_s=30)))
        await log.watched.wait()
        answer = await another_key.get(result(job_id, wait_s=30))
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "5")
        assert answer.json()["error"]["type"] == "too_many_waits"
        # What is answered at once is no wait, and other owners have waits of their own.
        assert (await another_key.get(result(job_id))).json()["status"] == 0
        assert (await another_key.get(result(ended, wait_s=30))).json()["status"] == 1
        assert (await bob.get(result(await submit(bob), wait_s=0.05))).status_code == 200
        await edge.execute(job_id, Cancel())
        assert (await waiting).json()["status"] == 2
        assert (await another_key.get(result(await submit(client), wait_s=0.05))).status_code == 200
