"""Deliveries on a machine that fails: its errors are no tries, and end no delivery."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from events.delivery import RequestRedelivery
from events.delivery_policy import SendResult
from events.errors import DatabaseUnavailable, HistoryGone, SegmentBroken
from events.job import fold
from events.log import DeliveryWriter, utc_now
from events.memory.queues import MemoryCallbackQueue
from events.queue import AT_ONCE
from events.types import CallbackExhausted, RedeliveryRequested
from events.wire.callback_keys import job_id_of
from storage.images import ImageStoreUnavailable
from tests.support.callbacks.bench import SETTINGS, Bench
from tests.support.polling import eventually

ADDRESS = "http://127.0.0.1/"
FAILED = SendResult(latency_s=0.1, status=500)
PASSING = AttributeError("'NoneType' object has no attribute 'write'")
AHEAD = timedelta(seconds=3)


async def test_an_error_that_nobody_foresaw_may_pass(tmp_path: Path) -> None:
    bench = Bench()
    job_id = await bench.ended_job(ADDRESS)
    bench.sender.outcomes = [PASSING] * (SETTINGS.max_errors - 1)
    async with bench.others_are_sent(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))
    assert await bench.tries(job_id) == 1


async def test_what_is_out_of_reach_is_waited_for(tmp_path: Path) -> None:
    bench = Bench()
    job_id = await bench.ended_job(ADDRESS)
    for error in (ImageStoreUnavailable(), SegmentBroken(), DatabaseUnavailable()):
        bench.sender.outcomes += [error] * SETTINGS.max_errors
    async with bench.running(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))


async def test_what_cannot_be_given_up_now_is_given_up_later(tmp_path: Path) -> None:
    bench = Bench()
    job_id = await bench.ended_job("http://127.0.0.1/hostile")
    bench.deliveries.append_error = HistoryGone()
    async with bench.running(tmp_path):
        other = await bench.ended_job(ADDRESS)  # nothing of it can be recorded either
        await eventually(lambda: len(bench.sender.sent) > SETTINGS.max_errors)
        assert await bench.queue.job_ids() == {job_id, other}
        bench.deliveries.recover()
        await eventually(bench.nothing_is_due)
    *_, last = await bench.deliveries.read(job_id)
    assert isinstance(last.data, CallbackExhausted)


async def test_a_process_that_stood_still_has_made_no_try(tmp_path: Path) -> None:
    bench = Bench()
    job_id = await bench.ended_job(ADDRESS)
    stalled = SendResult(latency_s=300, error="no answer within 15 s", stalled=True)
    bench.sender.outcomes = [stalled] * (SETTINGS.breaker_failures + 1)
    async with bench.running(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))
    assert await bench.tries(job_id) == 1


class CountingQueue(MemoryCallbackQueue):
    """Its server's clock is ahead of ours."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: utc_now() + AHEAD)
        self.parks = 0

    async def park(self, key: str, until: datetime, *, line: str | None = None) -> None:
        self.parks += 1
        await super().park(key, until, line=line)


async def test_a_clock_behind_that_of_the_queue_leaves_pauses_and_makes_no_loop(
    tmp_path: Path,
) -> None:
    queue = CountingQueue()
    bench = Bench(queue)
    job_id = await bench.ended_job(ADDRESS)
    bench.sender.outcomes = [FAILED]
    async with bench.running(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))
    assert queue.parks <= 2
    first, *_, last = await bench.deliveries.read(job_id)
    assert (last.time - first.time).total_seconds() > 0.5 * SETTINGS.delays_s[1]


class RacingQueue(MemoryCallbackQueue):
    """Somebody asks for the delivery once more just before it is parked for an hour."""

    bench: Bench

    async def park(self, key: str, until: datetime, *, line: str | None = None) -> None:
        job_id = job_id_of(key)
        if until > utc_now() + timedelta(minutes=1):
            writer = DeliveryWriter(self.bench.deliveries)
            job = fold(await self.bench.jobs.read(job_id))
            assert job is not None
            await writer.execute(RequestRedelivery(), job, await writer.load(job_id))
            await super().park(key, AT_ONCE)
        await super().park(key, until, line=line)


async def test_a_redelivery_that_is_asked_for_while_a_retry_is_parked_is_made_at_once(
    tmp_path: Path,
) -> None:
    queue = RacingQueue()
    queue.bench = bench = Bench(queue)
    job_id = await bench.ended_job(ADDRESS)
    bench.sender.outcomes = [FAILED, FAILED]
    async with bench.running(tmp_path):
        await eventually(lambda: bench.is_delivered(job_id))
    events = [event.data for event in await bench.deliveries.read(job_id)]
    assert RedeliveryRequested() in events
