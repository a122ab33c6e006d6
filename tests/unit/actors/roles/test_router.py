"""What the router puts on which queue, over the log and the queues in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.decisions import Cancel, Command, Complete, Erase, FailAttempt, Start, StoreImage
from events.errors import DatabaseUnavailable, LogFull, LogUnavailable, ReadTimeout
from events.ids import CONSUMERS
from events.log import utc_now
from events.types import Failed
from tests.support.database import database_in
from tests.support.events import image
from tests.support.polling import eventually
from tests.support.routing.bench import LANE, Bench

ADDRESS = "http://example.com/done"


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with database_in(tmp_path) as database:
        yield Bench(database)


def start() -> Start:
    return Start("a", max_attempts=3, max_attempts_total=9, now=utc_now())


COMPLETED: list[Command] = [start(), Complete("a", images=0)]
FAILED: list[Command] = [start(), FailAttempt("a", message="No.", final=True)]
CANCELLED: list[Command] = [Cancel()]


async def test_a_submitted_job_is_queued_once_on_its_endpoint_and_lane(bench: Bench) -> None:
    job_id = await bench.job(endpoint="fast", lane=9)
    for _ in range(2):  # a router that starts again is handed the same events
        async with bench.routing():
            await bench.routed()
    assert await bench.waits(job_id)
    assert await bench.queue.depth("fast") == 1
    async with bench.queue.consume("fast", 9 % CONSUMERS) as lane:
        [entry] = await lane.next(most=9, timeout_s=1)
    assert entry.job_id == job_id
    [queued] = await bench.queue.queued("fast", after=0, most=9)
    assert queued.deadline is not None


@pytest.mark.parametrize(
    "commands",
    [COMPLETED, FAILED, CANCELLED, [Erase()]],
    ids=["completed", "failed", "cancelled", "erased"],
)
async def test_a_job_that_has_ended_is_not_queued(bench: Bench, commands: list[Command]) -> None:
    await bench.job(*commands)
    async with bench.routing():
        await bench.routed()
    assert await bench.waits()


@pytest.mark.parametrize(
    "commands", [COMPLETED, FAILED, CANCELLED], ids=["completed", "failed", "cancelled"]
)
async def test_an_end_with_an_address_is_called_back_once(
    bench: Bench, commands: list[Command]
) -> None:
    job_id = await bench.job(*commands, callback_url=ADDRESS)
    await bench.job(*commands)
    for _ in range(2):
        async with bench.routing():
            await bench.routed()
    assert await bench.callbacks.job_ids() == {job_id}
    await bench.lose_callback(job_id)
    assert await bench.callbacks.job_ids() == set()


async def test_a_queue_that_is_away_or_full_is_waited_for(bench: Bench) -> None:
    errors = (LogUnavailable(), LogFull(), ReadTimeout())
    jobs = {await bench.job(): error for error in errors}
    bench.queue.errors = {job_id: [error] for job_id, error in jobs.items()}
    async with bench.routing():
        await eventually(lambda: bench.waits(*jobs))
    assert bench.queue.calls == dict.fromkeys(jobs, 2)


async def test_a_job_that_cannot_be_routed_stops_no_other(bench: Bench) -> None:
    unreadable = await bench.job(*COMPLETED, callback_url=ADDRESS)
    bench.log.unreadable.add(unreadable)
    hostile, job_id = await bench.job(), await bench.job()
    bench.queue.errors[hostile] = [TypeError("nobody foresaw this")]
    async with bench.routing():
        await eventually(lambda: bench.waits(job_id))
        later = await bench.job()
        await eventually(lambda: bench.waits(job_id, later))
    assert await bench.callbacks.job_ids() == set()
    assert isinstance((await bench.log.read(hostile))[-1].data, Failed)


# What is put back.


async def test_an_open_job_without_an_entry_gets_it_back(bench: Bench) -> None:
    job_id, ended_meanwhile, unreadable = [await bench.job() for _ in range(3)]
    await bench.project()
    await bench.cancel(ended_meanwhile)  # its row lags behind
    bench.log.unreadable.add(unreadable)
    async with bench.routing(requeue_period_s=0.01):
        await bench.routed()
        for _ in range(3):
            await bench.queue.remove("default", LANE, job_id)
            await eventually(lambda: bench.waits(job_id))


async def test_what_cannot_be_put_back_now_is_put_back_later(bench: Bench) -> None:
    job_id = await bench.job()
    await bench.project()
    errors: list[Exception] = [LogUnavailable(), LogFull(), ReadTimeout(), DatabaseUnavailable()]
    async with bench.routing(requeue_period_s=0.01):
        await bench.routed()
        bench.queue.errors_of_listing = errors
        await bench.queue.remove("default", LANE, job_id)
        await eventually(lambda: bench.waits(job_id))
    assert errors == []


async def test_a_job_of_a_later_version_is_queued_once_it_can_be_read(bench: Bench) -> None:
    later, other = await bench.job(), await bench.job()
    await bench.project()
    bench.log.of_later_version.add(later)
    async with bench.routing(requeue_period_s=0.01):
        await eventually(lambda: bench.waits(other))
        bench.log.of_later_version.clear()
        await eventually(lambda: bench.waits(later, other))
    assert len(await bench.log.read(later)) == 1


# What callers are called back for before the end.


async def test_what_a_caller_asked_for_is_told_of_as_it_happens(bench: Bench) -> None:
    asked = {"callback_url": ADDRESS, "callback_events": ("started", "image")}
    stored = StoreImage("a", image(0))
    async with bench.routing():
        for commands in ([start()], [start(), stored], COMPLETED):
            job_id = await bench.job(*commands, **asked)
            await eventually(lambda job_id=job_id: bench.callbacks_of(job_id))  # type: ignore[misc]
            await bench.lose_callback(job_id)
            assert await bench.callbacks.job_ids() == set()


async def test_what_nobody_asked_for_is_not_told_of(bench: Bench) -> None:
    await bench.job(start(), callback_url=ADDRESS, callback_events=("image",))
    await bench.job(start(), StoreImage("a", image(0)), callback_url=ADDRESS)
    await bench.job(start(), callback_events=("started",))  # it has no address
    beyond = StoreImage("a", image(8))
    await bench.job(start(), beyond, callback_url=ADDRESS, callback_events=("image",))
    async with bench.routing():
        await bench.routed()
    assert await bench.callbacks.job_ids() == set()


async def test_an_event_that_comes_while_another_is_told_is_told_too(bench: Bench) -> None:
    asked = {"callback_url": ADDRESS, "callback_events": ("started", "image")}
    job_id = await bench.job(start(), **asked)
    async with bench.routing():
        await eventually(lambda: bench.callbacks_of(job_id))
        async with bench.callbacks.due(max_unacknowledged=10, ack_wait_s=60) as due:
            [entry] = await due.next(most=10, timeout_s=5)
            job = await bench.writer.load(job_id)
            assert job is not None
            await bench.writer.execute(StoreImage("a", image(0)), job)
            await bench.routed()
            await entry.ack()  # what it was has been looked at before the image came
        assert await bench.callbacks_of(job_id)


async def test_a_router_that_starts_anew_reads_once_what_a_caller_asked_for(bench: Bench) -> None:
    job_id = await bench.job(callback_url=ADDRESS)
    async with bench.routing():
        await bench.routed()
    job = await bench.writer.load(job_id)
    assert job is not None
    seen = Counter(bench.log.reads)
    async with bench.routing():  # it is handed those that were not acknowledged, and what follows
        await bench.routed()
        for command in (start(), *(StoreImage("a", image(index)) for index in range(5))):
            job = (await bench.writer.execute(command, job)).job
            assert job is not None
        await bench.routed()
    assert (bench.log.reads - seen)[job_id] <= 1
