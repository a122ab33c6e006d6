"""The status of an endpoint, and its rate."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from actors.scheduler.status import EndpointStatus, EndRate
from events.decisions import Cancel
from tests.support.clock import Clock
from tests.support.polling import eventually
from tests.support.scheduler.bench import Bench


async def test_it_tells_workers_what_waits_longest_and_the_rate(bench: Bench) -> None:
    async with bench.dispatching(slots=1) as dispatcher:
        await eventually(lambda: bench.cluster.actors)
        first = await bench.submit(lane=3)
        await bench.running(first)
        status = await dispatcher.status.describe()
        (worker,) = status["workers"]
        assert worker == {
            "state": "ready",
            "is_current": True,
            "running": 1,
            "checkpoints": [],
            "trouble": None,
            "server": None,
        }
        assert status["oldest_waiting_s"] is None
        assert status["rate_per_s"] is None
        second = await bench.submit(lane=4)
        assert (await dispatcher.status.describe())["oldest_waiting_s"] >= 0
        await bench.finish(first)
        await bench.running(second)
        assert (await dispatcher.status.describe())["rate_per_s"] == 1.0


@pytest.fixture
async def status(bench: Bench) -> AsyncIterator[EndpointStatus]:
    """Of an endpoint whose one slot runs a job."""
    async with bench.dispatching(slots=1) as dispatcher:
        await eventually(lambda: bench.cluster.actors)
        await bench.running(await bench.submit(lane=3))
        yield dispatcher.status


async def test_an_unreadable_job_hides_no_other(bench: Bench, status: EndpointStatus) -> None:
    bench.log.unreadable.add(await bench.submit(lane=4))
    assert (await status.describe())["oldest_waiting_s"] is None
    await bench.submit(lane=5)
    assert (await status.describe())["oldest_waiting_s"] >= 0


async def test_a_cancelled_backlog_is_not_all_read(bench: Bench, status: EndpointStatus) -> None:
    for _ in range(40):
        job_id = await bench.submit(lane=4)
        await bench.writer.execute(Cancel(), await bench.job(job_id))
    before = bench.log.reads.total()
    assert (await status.describe())["oldest_waiting_s"] is None
    assert 0 < bench.log.reads.total() - before <= 36  # the dispatcher meets some of them, too


def test_it_is_that_of_the_last_minute() -> None:
    clock = Clock()
    rate = EndRate(clock)
    for _ in range(200):
        clock.now += 0.5
        rate.note_end()
    assert rate.per_s() == pytest.approx(2.0, rel=0.05)
    clock.now += 30
    assert rate.per_s() == pytest.approx(1.0, rel=0.05)
    clock.now += 31
    assert rate.per_s() is None


def test_one_that_has_just_begun_counts_by_the_time_since_then() -> None:
    clock = Clock()
    rate = EndRate(clock)
    clock.now += 10
    for _ in range(50):
        rate.note_end()
    assert rate.per_s() == 5.0
