"""How many callbacks a receiver gets at once, and when it is left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from actors.callbacks.receivers import Breaker, BreakerLimits, Receivers
from events.ids import new_id
from events.log import utc_now
from tests.support.clock import Clock
from tests.support.memory.queues import MemoryCallbackQueue
from tests.support.patience import FACTOR

LIMITS = BreakerLimits(failures=3, open_s=10, longest_open_s=40, jitter=0)


def some_receivers(
    *, at_once: int, most_active: int, clock: Callable[[], float] = time.monotonic
) -> Receivers:
    queue = MemoryCallbackQueue(clock=utc_now)
    return Receivers(queue, at_once=at_once, most_active=most_active, breaker=LIMITS, clock=clock)


async def visit(receivers: Receivers, name: str, until: asyncio.Event | None = None) -> float:
    """Make one callback that lasts until the event; how long it was told to wait, in seconds."""
    async with receivers.permit(name, new_id()) as permit:
        if not permit.wait_s and until is not None:
            await until.wait()
        return permit.wait_s


async def started(receivers: Receivers, name: str, until: asyncio.Event) -> asyncio.Task[float]:
    task = asyncio.create_task(visit(receivers, name, until))
    await asyncio.sleep(0)
    return task


async def test_those_that_do_not_fit_are_told_to_come_later_one_after_another() -> None:
    receivers, done = some_receivers(at_once=4, most_active=8), asyncio.Event()
    inside = [await started(receivers, "slow", done) for _ in range(8)]
    times_s = [await visit(receivers, "slow") for _ in range(100)]
    assert min(times_s) > 0
    assert max(times_s) < 2, "a guess: nothing has been answered yet"
    assert await visit(receivers, "other") == 0
    done.set()
    assert await asyncio.gather(*inside) == [0] * 8
    assert await visit(receivers, "slow") == 0


async def test_each_is_told_its_own_time_up_to_a_minute_and_the_others_come_one_by_one() -> None:
    clock, done = Clock(0.0), asyncio.Event()
    receivers = some_receivers(at_once=2, most_active=2, clock=clock)
    inside = [await started(receivers, "slow", done)]
    first = await started(receivers, "slow", until := asyncio.Event())
    clock.now += 2
    until.set()
    assert await first == 0
    inside.append(await started(receivers, "slow", done))
    times_s = [await visit(receivers, "slow") for _ in range(100)]
    assert times_s[:58] == [2 + one for one in range(1, 59)]
    assert times_s[58:] == pytest.approx([60 + 0.1 * one for one in range(42)])
    done.set()
    assert await asyncio.gather(*inside) == [0, 0]


async def test_nobody_waits_aside_for_long() -> None:
    receivers, done = some_receivers(at_once=1, most_active=2), asyncio.Event()
    inside = await started(receivers, "hung", done)
    async with asyncio.timeout(5 * FACTOR):
        assert await visit(receivers, "hung") > 0
    done.set()
    assert await inside == 0


async def test_a_receiver_that_answers_fast_has_more_room() -> None:
    receivers, end = some_receivers(at_once=2, most_active=40), asyncio.Event()
    assert await inside_of(receivers) == 2 + 8
    holds = await started(receivers, "fast", end)
    assert await visit(receivers, "fast") == 0
    assert await inside_of(receivers) == 40 - 1
    end.set()
    await holds


async def inside_of(receivers: Receivers) -> int:
    """How many callbacks there is room for until one is told to come later."""
    done = asyncio.Event()
    inside: list[asyncio.Task[float]] = []
    while not (visitor := await started(receivers, "fast", done)).done():
        inside.append(visitor)
    done.set()
    assert set(await asyncio.gather(*inside)) == {0}
    return len(inside)


async def fail(receivers: Receivers, name: str) -> None:
    async with receivers.permit(name, new_id()) as permit:
        assert permit.wait_s == 0
        permit.answered = False


async def test_a_receiver_that_fails_time_after_time_is_left_alone_until_a_probe() -> None:
    clock = Clock(0.0)
    receivers = some_receivers(at_once=4, most_active=8, clock=clock)
    for _ in range(LIMITS.failures):
        await fail(receivers, "dead")
    async with receivers.permit("dead", new_id()) as permit:
        assert (permit.wait_s, permit.is_withheld) == (10, True)
    clock.now = 9.9
    async with receivers.permit("dead", new_id()) as permit:
        assert permit.is_withheld
    assert await visit(receivers, "other") == 0
    clock.now = 10.0
    async with receivers.permit("dead", new_id()) as probe:
        assert probe.wait_s == 0
        async with receivers.permit("dead", new_id()) as permit:
            assert permit.is_withheld
        probe.answered = True
    assert await visit(receivers, "dead") == 0


async def test_who_waited_aside_while_the_breaker_opened_is_withheld() -> None:
    receivers = some_receivers(at_once=1, most_active=8, clock=Clock(0.0))
    for _ in range(LIMITS.failures - 1):
        await fail(receivers, "dead")
    async with receivers.permit("dead", new_id()) as last:
        aside = await started(receivers, "dead", asyncio.Event())
        last.answered = False
    assert await aside == 10


async def test_receivers_that_are_left_alone_are_counted() -> None:
    receivers = some_receivers(at_once=4, most_active=8)
    for name, answered in (("broken", False), ("well", True)):
        for _ in range(LIMITS.failures):
            async with receivers.permit(name, new_id()) as permit:
                permit.answered = answered
    assert receivers.open_breakers == 1


# One breaker.


def opened(clock: Clock, limits: BreakerLimits = LIMITS) -> Breaker:
    breaker = Breaker(limits, clock=clock)
    for _ in range(limits.failures):
        breaker.end(False, probe=breaker.begin())
    assert not breaker.is_closed
    return breaker


def test_it_opens_after_as_many_failures_in_a_row_as_its_limit() -> None:
    breaker = Breaker(LIMITS, clock=Clock(0.0))
    for answered in (False, False, True, False, None, False):
        assert not breaker.withheld_s()
        breaker.end(answered, probe=breaker.begin())
    assert breaker.is_closed
    breaker.end(False, probe=breaker.begin())
    assert breaker.withheld_s() == 10


def test_a_probe_that_came_to_nothing_leaves_room_for_another() -> None:
    clock = Clock(0.0)
    breaker = opened(clock)
    clock.now = 10
    breaker.end(None, probe=breaker.begin())
    assert breaker.withheld_s() == 0
    assert not breaker.is_closed


def test_each_probe_that_fails_doubles_the_time_up_to_the_limit() -> None:
    clock = Clock(0.0)
    breaker = opened(clock)
    times_s = []
    for _ in range(4):
        clock.now += breaker.withheld_s()
        breaker.end(False, probe=breaker.begin())
        times_s.append(breaker.withheld_s())
    assert times_s == [20, 40, 40, 40]
    clock.now += 40
    breaker.end(True, probe=breaker.begin())
    for _ in range(3):
        breaker.end(False, probe=breaker.begin())
    assert breaker.withheld_s() == 10, "an answer has reset the time too"


def test_a_try_that_began_before_it_opened_does_not_lengthen_the_time() -> None:
    breaker = opened(Clock(0.0))
    breaker.end(False, probe=False)
    assert breaker.withheld_s() == 10
    breaker.end(True, probe=False)
    assert breaker.is_closed


def test_times_are_spread_but_bounded() -> None:
    limits = BreakerLimits(failures=3, open_s=10, longest_open_s=40, jitter=0.2)
    clock = Clock(0.0)
    times_s = [opened(clock, limits).withheld_s() for _ in range(200)]
    assert 8 <= min(times_s) < max(times_s) <= 14
    assert len(set(times_s)) > 100
