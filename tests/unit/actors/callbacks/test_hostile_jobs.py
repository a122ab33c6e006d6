"""The content of a job ends at most its own callback, and errors of the machine end none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from events.bus.queues import AT_ONCE
from events.delivery import RequestRedelivery, SendResult, fold_delivery
from events.errors import DatabaseUnavailable, HistoryBroken, HistoryGone
from events.job import fold
from events.log import DeliveryWriter, utc_now
from events.types import CallbackExhausted, RedeliveryRequested
from storage.images import ImageStoreUnavailable
from tests.support.callbacks.bench import LIMITS, Bench
from tests.support.memory.queues import MemoryCallbackQueue
from tests.support.polling import eventually


async def test_a_callback_that_cannot_be_made_is_given_up(bench: Bench) -> None:
    job_id = await bench.ended_job("http://127.0.0.1/hostile")
    async with bench.others_are_sent():
        await eventually(bench.nothing_is_due)
    *_, last = await bench.deliveries.read(job_id)
    assert isinstance(last.data, CallbackExhausted)
    assert "TypeError" in last.data.message


@pytest.mark.parametrize("url", ["", "not a url", "http://[::1", "http://\x00/", "ftp://x/"])
async def test_an_address_of_any_form_comes_to_an_end(bench: Bench, url: str) -> None:
    job_id = await bench.ended_job(url)
    async with bench.others_are_sent():
        await eventually(bench.nothing_is_due)
    assert fold_delivery(await bench.deliveries.read(job_id)).ended


@pytest.mark.parametrize("logs", [("jobs",), ("deliveries",), ("jobs", "deliveries")])
async def test_a_job_that_cannot_be_read_leaves_the_queue(
    bench: Bench, logs: Sequence[str]
) -> None:
    job_id = await bench.ended_job("http://127.0.0.1/")
    for log in logs:
        getattr(bench, log).unreadable.add(job_id)
    async with bench.others_are_sent():
        await eventually(bench.nothing_is_due)


@pytest.mark.parametrize("log", ["jobs", "deliveries"])
async def test_a_callback_of_a_later_version_waits_for_it(bench: Bench, log: str) -> None:
    job_id = await bench.ended_job("http://127.0.0.1/")
    getattr(bench, log).of_later_version.add(job_id)
    async with bench.others_are_sent():
        await eventually(lambda: job_id in bench.queue.parked)
    assert await bench.queue.job_ids() == {job_id}
    assert bench.sender.sent == ["http://127.0.0.1/other"]


# Errors of the machine are no tries.

ADDRESS = "http://127.0.0.1/"
FAILED = SendResult(latency_s=0.1, status=500)
PASSING = AttributeError("'NoneType' object has no attribute 'write'")
AHEAD = timedelta(hours=1)


async def test_an_error_that_nobody_foresaw_may_pass(bench: Bench) -> None:
    job_id = await bench.ended_job(ADDRESS)
    bench.sender.outcomes = [PASSING] * (LIMITS.max_errors - 1)
    async with bench.others_are_sent():
        await eventually(lambda: bench.is_delivered(job_id))
    assert await bench.attempts(job_id) == 1


async def test_what_is_out_of_reach_is_waited_for(bench: Bench) -> None:
    job_id = await bench.ended_job(ADDRESS)
    for error in (ImageStoreUnavailable(), HistoryBroken(), DatabaseUnavailable()):
        bench.sender.outcomes += [error] * LIMITS.max_errors
    await bench.deliver(job_id)


async def test_what_cannot_be_given_up_now_is_given_up_later(bench: Bench) -> None:
    job_id = await bench.ended_job("http://127.0.0.1/hostile")
    bench.deliveries.append_error = HistoryGone()
    async with bench.running():
        other = await bench.ended_job(ADDRESS)  # nothing of it can be recorded either
        await eventually(lambda: len(bench.sender.sent) > LIMITS.max_errors)
        assert await bench.queue.job_ids() == {job_id, other}
        bench.deliveries.recover()
        await eventually(bench.nothing_is_due)
    *_, last = await bench.deliveries.read(job_id)
    assert isinstance(last.data, CallbackExhausted)


async def test_a_process_that_stood_still_has_made_no_try(bench: Bench) -> None:
    job_id = await bench.ended_job(ADDRESS)
    stalled = SendResult(latency_s=300, error="no answer within 15 s", stalled=True)
    bench.sender.outcomes = [stalled] * (LIMITS.breaker.failures + 1)
    await bench.deliver(job_id)
    assert await bench.attempts(job_id) == 1


class CountingQueue(MemoryCallbackQueue):
    """Its server's clock is ahead of ours."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: utc_now() + AHEAD)
        self.parks = 0

    async def park(self, job_id: str, until: datetime, *, receiver: str | None = None) -> None:
        self.parks += 1
        await super().park(job_id, until, receiver=receiver)


async def test_a_clock_behind_that_of_the_queue_leaves_pauses_and_makes_no_loop() -> None:
    queue, pause_s = CountingQueue(), 1.0
    bench = Bench(queue)
    bench.limits = replace(LIMITS, delays_s=(0, pause_s))
    bench.sender.outcomes = [FAILED]
    async with bench.running():
        job_id = await bench.ended_job(ADDRESS)
        await eventually(lambda: bench.is_delivered(job_id))
    assert queue.parks <= 2
    first, *_, last = await bench.deliveries.read(job_id)
    assert (last.time - first.time).total_seconds() > 0.5 * pause_s


class RacingQueue(MemoryCallbackQueue):
    """Somebody asks for the delivery once more just before it is parked for an hour."""

    bench: Bench

    async def park(self, job_id: str, until: datetime, *, receiver: str | None = None) -> None:
        if until > utc_now() + timedelta(minutes=1):
            writer = DeliveryWriter(self.bench.deliveries)
            job = fold(await self.bench.jobs.read(job_id))
            assert job is not None
            await writer.execute(RequestRedelivery(), job, await writer.load(job_id))
            await super().park(job_id, AT_ONCE)
        await super().park(job_id, until, receiver=receiver)


async def test_a_redelivery_that_is_asked_for_while_a_retry_is_parked_is_made_at_once() -> None:
    queue = RacingQueue()
    queue.bench = bench = Bench(queue)
    job_id = await bench.ended_job(ADDRESS)
    bench.sender.outcomes = [FAILED, FAILED]
    await bench.deliver(job_id)
    events = [event.data for event in await bench.deliveries.read(job_id)]
    assert RedeliveryRequested() in events
