"""What the dispatcher tells of an endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actors.endpoints.status import EndpointStatus
from events.decisions import Cancel
from events.errors import JobDamaged
from events.job import Job
from tests.support.dispatch import Bench
from tests.support.polling import eventually


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_it_tells_workers_what_waits_longest_and_the_pace(bench: Bench) -> None:
    async with bench.dispatching(slots=1) as dispatcher:
        await eventually(lambda: bench.cluster.actors)
        first = await bench.submit(lane=3)
        await bench.running(first)
        told = await dispatcher.status.tell()
        (worker,) = told["workers"]
        assert worker == {
            "state": "ready",
            "is_current": True,
            "running": 1,
            "checkpoints": [],
            "trouble": None,
        }
        assert told["oldest_waiting_s"] is None
        assert told["rate_per_s"] is None
        second = await bench.submit(lane=4)
        assert (await dispatcher.status.tell())["oldest_waiting_s"] >= 0
        await bench.finish(first)
        await bench.running(second)
        assert (await dispatcher.status.tell())["rate_per_s"] == 1.0


@pytest.fixture
async def status(bench: Bench) -> AsyncIterator[EndpointStatus]:
    """Of an endpoint whose one slot runs a job."""
    async with bench.dispatching(slots=1) as dispatcher:
        await eventually(lambda: bench.cluster.actors)
        await bench.running(await bench.submit(lane=3))
        yield dispatcher.status


async def test_a_job_that_cannot_be_read_hides_no_other(
    bench: Bench, status: EndpointStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, load = await bench.submit(lane=4), bench.writer.load

    async def damaged_load(job_id: str) -> Job | None:
        if job_id == damaged:
            raise JobDamaged
        return await load(job_id)

    monkeypatch.setattr(bench.writer, "load", damaged_load)
    assert (await status.tell())["oldest_waiting_s"] is None
    await bench.submit(lane=5)
    assert (await status.tell())["oldest_waiting_s"] >= 0


async def test_it_does_not_read_a_whole_backlog_that_was_cancelled(
    bench: Bench, status: EndpointStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(40):
        job_id = await bench.submit(lane=4)
        await bench.writer.execute(Cancel(), await bench.job(job_id))
    read: list[str] = []
    load = bench.writer.load

    async def counted(job_id: str) -> Job | None:
        read.append(job_id)
        return await load(job_id)

    monkeypatch.setattr(bench.writer, "load", counted)
    assert (await status.tell())["oldest_waiting_s"] is None
    assert 0 < len(read) <= 36  # the dispatcher meets some of them, too
