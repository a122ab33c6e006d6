"""Callbacks that wait in line for a receiver: who moves them on, and what their waiting costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest

from actors.callbacks.deliverer import DeliveryLimits
from actors.callbacks.receivers import BreakerLimits, Receivers
from events.bus.queues import AT_ONCE, CallbackQueue
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import utc_now
from tests.support.callbacks.bench import Bench
from tests.support.callbacks.crowd import Crowd, run_in_virtual_time
from tests.support.events import MORNING
from tests.support.memory.queues import MemoryCallbackQueue
from tests.support.polling import eventually

LATER = MORNING + timedelta(hours=1)
BREAKER = BreakerLimits(failures=1, open_s=100, longest_open_s=100, jitter=0)


class Queue(MemoryCallbackQueue):
    """Nothing that is parked becomes due. The first look at it fails."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: MORNING)
        self.called: list[str] = []
        self.is_away = True

    async def park(self, job_id: str, until: object, *, receiver: str | None = None) -> None:
        if until == AT_ONCE:
            self.called.append(job_id)
        await super().park(job_id, LATER, receiver=receiver)

    async def parked_by_receiver(self) -> AsyncGenerator[dict[str, str]]:
        if self.is_away:
            self.is_away = False
            raise LogUnavailable
        async for page in super().parked_by_receiver():
            yield page


def few_receivers(queue: Queue) -> Receivers:
    clock = asyncio.get_running_loop().time
    return Receivers(queue, at_once=4, most_active=8, breaker=BREAKER, clock=clock)


async def called_after(seconds: float, queue: Queue, receivers: Receivers) -> list[str]:
    moving = asyncio.create_task(receivers.run())
    await asyncio.sleep(seconds)
    assert not moving.done()
    moving.cancel()
    return queue.called


def test_after_a_start_each_line_is_moved_by_its_first_and_few_at_a_time() -> None:
    async def run() -> None:
        queue = Queue()
        for turn in range(2):
            for number in range(12):
                await queue.park(
                    f"{turn} of {number}", LATER, receiver=f"http://{number}.example:80"
                )
        called = await called_after(2.9, queue, few_receivers(queue))
        assert 10 <= len(called) <= 12
        assert all(each.startswith("0 of ") for each in called)
        assert len(set(called)) == len(called)

    run_in_virtual_time(run())


def test_a_line_is_not_moved_while_its_receiver_is_left_alone_or_has_some_on_the_way() -> None:
    async def run() -> None:
        queue = Queue()
        receivers = few_receivers(queue)
        for name in ("dead", "called"):
            for number in range(3):
                await queue.park(f"{name} {number}", LATER, receiver=name)
        async with receivers.permit("dead", "first") as permit:
            permit.answered = False
        assert await called_after(20, queue, receivers) == ["called 0"]
        assert (await called_after(30, queue, receivers))[1:2] == ["called 1"], (
            "the first never came"
        )

    run_in_virtual_time(run())


def test_callbacks_that_could_not_be_made_due_stay_first_in_their_line() -> None:
    class FailingQueue(Queue):
        failures = 1

        async def park(self, job_id: str, until: object, *, receiver: str | None = None) -> None:
            if until == AT_ONCE and self.failures:
                self.failures -= 1
                raise LogUnavailable
            await super().park(job_id, until, receiver=receiver)

    async def run() -> None:
        queue = FailingQueue()
        receivers, receiver = few_receivers(queue), "http://a.example:80"
        async with receivers.permit(receiver, "first") as permit:
            permit.answered = False
        for number in range(3):
            async with receivers.permit(receiver, str(number)) as permit:
                assert permit.is_withheld
        await asyncio.sleep(BREAKER.open_s)
        with pytest.raises(LogUnavailable):
            await receivers.make_due(receiver)
        assert queue.called == []
        await receivers.make_due(receiver)
        assert queue.called == ["0", "1", "2"]

    run_in_virtual_time(run())


async def test_callbacks_of_which_nothing_is_due_any_more_keep_no_other_waiting(
    bench: Bench,
) -> None:
    """The callbacks of erased jobs are an example."""
    later = utc_now() + timedelta(hours=1)
    for _ in range(60):
        await bench.queue.park(new_id(), later, receiver="http://127.0.0.1:80")
    job_id = await bench.ended_job("http://127.0.0.1/done")
    await bench.queue.park(job_id, later, receiver="http://127.0.0.1:80")
    async with bench.running():
        await eventually(lambda: bench.is_delivered(job_id), within_s=5)
    assert await bench.queue.job_ids() == set()


# 10,000 callbacks to one slow receiver.

CALLBACKS = 10_000
LIMITS = DeliveryLimits(delays_s=())
ALL_SEEN_S = 50.0
"""By then each has been handled once."""
END_S = 250.0


def new_receivers(queue: CallbackQueue) -> Receivers:
    return Receivers(
        queue,
        at_once=LIMITS.per_host,
        most_active=LIMITS.in_flight // 2,
        breaker=BreakerLimits(),
        clock=asyncio.get_running_loop().time,
    )


async def crowd_of(slow_s: float) -> Crowd:
    crowd = Crowd(new_receivers, {"slow": slow_s, "other": 0.02})
    for number in range(CALLBACKS):
        crowd.add(f"slow-{number}", "slow")
    return crowd


def within(times: list[float], begin_s: float, end_s: float) -> int:
    return sum(begin_s < time <= end_s for time in times)


def test_they_wake_up_as_often_as_the_receiver_takes_them_and_no_other_waits() -> None:
    async def run() -> Crowd:
        crowd = await crowd_of(1.0)
        loop = asyncio.get_running_loop()
        for second in range(int(ALL_SEEN_S), int(END_S)):
            loop.call_at(second, crowd.add, f"other-{second}", "other")
        await crowd.run(END_S)
        return crowd

    crowd = run_in_virtual_time(run())
    seconds = END_S - ALL_SEEN_S
    assert within(crowd.woken, ALL_SEEN_S, END_S) / seconds <= 2 * LIMITS.per_host + 10
    assert within(crowd.delivered, ALL_SEEN_S, END_S) / seconds >= 0.95 * (LIMITS.per_host + 1)
    others_s = [delay_s for callback, delay_s in crowd.delays_s.items() if "other" in callback]
    assert len(others_s) >= seconds - 1
    assert max(others_s) < 0.2


def test_a_receiver_that_becomes_fast_gets_them_as_fast_as_it_takes_them() -> None:
    async def run() -> Crowd:
        crowd = await crowd_of(1.0)
        loop = asyncio.get_running_loop()
        loop.call_at(ALL_SEEN_S, setattr, crowd, "answers_s", {"slow": 0.02})
        await crowd.run(END_S)
        return crowd

    crowd = run_in_virtual_time(run())
    assert len(crowd.delays_s) == CALLBACKS


def test_a_new_process_gives_a_receiver_those_in_line_as_fast_as_it_takes_them() -> None:
    async def run() -> Crowd:
        crowd = await crowd_of(1.0)
        await crowd.run(ALL_SEEN_S)
        crowd.answers_s = {"slow": 0.02}
        await crowd.run(END_S)
        return crowd

    crowd = run_in_virtual_time(run())
    assert len(crowd.delays_s) == CALLBACKS
    rate = LIMITS.per_host / 0.02
    assert max(crowd.delivered) < ALL_SEEN_S + 1.5 * CALLBACKS / rate
