"""Receivers: limits the concurrent callbacks to each receiver, and decides when waiting callbacks
are sent.

A few callbacks to a receiver wait in memory ("aside"), so that a fast receiver is kept busy. All
further callbacks are parked on the queue, so a receiver that hangs blocks neither other receivers
nor the queue.

The parked callbacks of a receiver form a line in memory. When a callback to the receiver ends, the
first callbacks of the line are made due at once. A process that dies loses its lines. Therefore
each parked callback also has a time at which it becomes due by itself. If its expected turn is less
than a minute away, this is the time of the turn. Later callbacks get different times, at least ten
per second, so that they do not all become due at the same moment. While the circuit breaker of a
receiver is open, all its callbacks are parked in the same way.

The queue stores for each parked callback the receiver for which it waits, so `run` can restore the
lines after a start. If no callback to a receiver is being sent, for example after a start, `run`
makes the first callback of its line due. The end of this callback moves the line again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from events.bus.queues import AT_ONCE, CallbackQueue
from events.delivery import JITTER
from events.errors import LogFull, LogUnavailable
from events.retry import keep_trying
from settings.constant import constant

PER_HOST = constant("CALLBACK_PER_HOST", 4)
"""Largest number of callbacks that are sent to one receiver at the same time."""
_LONGEST_ASIDE_S = 1.0
_LONGEST_PARKED_S = 60.0
_MOST_REMEMBERED = 1000
_LONGEST_LINE = 100_000
_MOST_GUESSED = 128
"""Largest number of callbacks that are parked for a short time, while no callback to the receiver
has ended.
"""
_WAKES_PER_S = 10.0
"""Smallest number of a receiver's parked callbacks that become due by themselves per second."""
_ARRIVAL_S = 30.0
"""Seconds within which a callback that was made due should arrive. If it has not arrived by then,
another callback is made due.
"""
_PERIOD_S = 1.0
"""Seconds between two searches for lines that do not move."""
_MOST_MOVED = 5
"""Largest number of lines that are moved per period. If all these receivers hang, their callbacks
occupy only a small part of the deliveries in flight.
"""
_FIRST_GUESS_S = 0.25
_FORGETTING = 1.2


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    failures: int = constant("CALLBACK_BREAKER_FAILURES", 4)
    """Number of consecutive failures after which the breaker opens."""
    open_s: float = constant("CALLBACK_BREAKER_OPEN_S", 15.0)
    """Seconds for which the breaker is open the first time."""
    longest_open_s: float = constant("CALLBACK_BREAKER_LONGEST_S", 600.0)
    jitter: float = JITTER
    """Largest random change of a period, as a fraction of the period."""


class Breaker:
    """A circuit breaker for one receiver (M. Nygard, Release It!, "Circuit Breaker").

    While the breaker is closed, every callback is sent. After a number of consecutive failures the
    breaker opens for a period, in which no callback is sent. After the period a single callback is
    sent as a probe. If the probe fails, the breaker opens for twice as long, up to a limit. Any
    answer that shows that the receiver works closes the breaker. The state is in memory only.
    """

    def __init__(self, limits: BreakerLimits, *, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._failures = 0
        self._period_s = 0.0
        """Length of the current or latest open period in seconds, or 0 while the breaker is closed.
        """
        self._open_until = 0.0
        self._probing = False

    @property
    def is_closed(self) -> bool:
        return self._period_s == 0

    def withheld_s(self) -> float:
        """Seconds for which a callback must wait, or 0 if an attempt may be made now.

        While the breaker is open, the times are spread at random over a short time after the end of
        the period. So few callbacks become due while the probe is sent.
        """
        if self.is_closed:
            return 0.0
        if self._probing:
            return random.uniform(0.5, 1) * self._period_s
        left_s = self._open_until - self._clock()
        if left_s <= 0:
            return 0.0
        return left_s + random.uniform(0, self._limits.jitter) * self._period_s

    def begin(self) -> bool:
        """Record that an attempt begins. Returns whether the attempt is the probe."""
        self._probing = not self.is_closed
        return self._probing

    def end(self, answered: bool | None, *, probe: bool) -> None:
        """Record the end of an attempt.

        `answered` is whether the receiver works, or None if the attempt did not show it.
        """
        if probe:
            self._probing = False
        if answered:
            self._failures, self._period_s = 0, 0.0
        elif answered is False and self.is_closed:
            self._failures += 1
            if self._failures >= self._limits.failures:
                self._open(self._limits.open_s)
        elif answered is False and probe:
            self._open(min(2 * self._period_s, self._limits.longest_open_s))

    def _open(self, period_s: float) -> None:
        jitter = self._limits.jitter
        self._period_s = period_s
        self._open_until = self._clock() + period_s * random.uniform(1 - jitter, 1 + jitter)


@dataclass(slots=True)
class SendPermit:
    """Permission to send a callback to a receiver, or the time for which the callback must wait."""

    wait_s: float = 0.0
    """Seconds to wait, or 0 if the callback may be sent now."""
    is_withheld: bool = False
    """Whether the callback waits because the breaker is open."""
    answered: bool | None = None
    """Whether the receiver works, or None if unknown. The holder of the permit sets it."""


@dataclass(slots=True)
class _Receiver:
    slots: asyncio.Semaphore
    """One slot for each callback that may be sent at the same time."""
    breaker: Breaker
    inside: int = 0
    """Callbacks that are being sent or wait aside."""
    best_s: float | None = None
    """Shortest recent duration of a callback in seconds, or None if no callback has ended.

    The mean is not suitable: in a burst it shows how busy this service is, and not how fast the
    receiver is.
    """
    began: dict[object, float] = field(default_factory=dict)
    """Start times of the callbacks that are being sent, the oldest first."""
    booked_until: float = 0.0
    """Time at which the last parked callback with an expected turn becomes due."""
    next_due_at: float = 0.0
    """Earliest time at which the next callback without an expected turn may become due."""
    line: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """The job ids of parked callbacks, in the order in which they are made due."""
    arriving: dict[str, float] = field(default_factory=dict)
    """The job ids of callbacks that were made due, each with the time by which it should arrive."""

    def expected_s(self, now: float) -> float:
        """Expected duration of a callback in seconds.

        If the oldest running callback already takes longer than `_LONGEST_ASIDE_S`, the result is
        its age.
        """
        age_s = now - next(iter(self.began.values()), now)
        if age_s > _LONGEST_ASIDE_S:
            return age_s
        return _FIRST_GUESS_S if self.best_s is None else max(self.best_s, 0.001)

    def took(self, seconds: float) -> None:
        before_s = seconds if self.best_s is None else self.best_s
        self.best_s = min(seconds, _FORGETTING * before_s)


class Receivers:
    """The state of the thousand receivers that were used most recently.

    A callback is named by the id of its job.
    """

    def __init__(
        self,
        queue: CallbackQueue,
        *,
        at_once: int,
        most_inside: int,
        breaker: BreakerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at_once` limits the callbacks that are sent to one receiver at the same time.

        `most_inside` limits the callbacks to one receiver that are sent or wait aside.
        """
        self._queue = queue
        self._clock = clock
        self._breaker = breaker
        self._at_once = at_once
        self._most_inside = max(most_inside, at_once)
        self._receivers: dict[str, _Receiver] = {}
        """Receivers by name. The least recently used receiver is first."""

    @property
    def open_breakers(self) -> int:
        """Number of remembered receivers whose breaker is not closed."""
        return sum(not each.breaker.is_closed for each in self._receivers.values())

    async def run(self) -> None:
        """Restore the lines from the queue, then keep them moving until cancelled."""
        await keep_trying(self._restore_lines, on=LogUnavailable)
        while True:
            await keep_trying(self._move_idle_lines, on=(LogUnavailable, LogFull))
            await asyncio.sleep(_PERIOD_S)

    @asynccontextmanager
    async def permit(self, name: str, job_id: str) -> AsyncGenerator[SendPermit]:
        """Wait until a callback may be sent to the receiver `name`. A callback that would wait too
        long joins the line of the receiver, and its permit has `wait_s`.
        """
        receiver = self._receiver(name)
        receiver.arriving.pop(job_id, None)
        if withheld_s := receiver.breaker.withheld_s():
            yield self._withhold(receiver, job_id, withheld_s)
            return
        if receiver.inside >= self._most_now(receiver):
            yield self._put_off(receiver, job_id)
            return
        receiver.line.pop(job_id, None)
        receiver.inside += 1
        try:
            if not await _acquire(receiver.slots):
                yield self._put_off(receiver, job_id)
                return
            try:
                async with self._send_permit(receiver, job_id) as permit:
                    yield permit
            finally:
                receiver.slots.release()
        finally:
            receiver.inside -= 1

    async def make_due(self, name: str, *, most: int | None = None) -> None:
        """Make as many callbacks of a receiver's line due as may be sent or wait aside now, at most
        `most`. Call this after each permit has ended. Raises LogUnavailable, LogFull.
        """
        receiver = self._receivers.get(name)
        if receiver is None or receiver.breaker.withheld_s():
            return
        free = self._most_now(receiver) - receiver.inside - self._count_arriving(receiver)
        free = min(len(receiver.line), free if most is None else min(free, most))
        chosen = deque(receiver.line.popitem(last=False)[0] for _ in range(free))
        receiver.arriving |= dict.fromkeys(chosen, self._clock() + _ARRIVAL_S)
        try:
            while chosen:
                await self._queue.park(chosen[0], AT_ONCE)
                chosen.popleft()
        except (LogUnavailable, LogFull):
            for job_id in reversed(chosen):  # Return them to the front, in the same order.
                receiver.arriving.pop(job_id, None)
                receiver.line[job_id] = None
                receiver.line.move_to_end(job_id, last=False)
            raise

    async def remove(self, job_id: str) -> None:
        """Remove a callback of which nothing is due any more. If it was made due, other callbacks
        to the same receiver are made due instead. Raises LogUnavailable, LogFull.
        """
        for receiver in self._receivers.values():
            receiver.line.pop(job_id, None)
        for name, receiver in list(self._receivers.items()):
            if receiver.arriving.pop(job_id, None) is not None:
                await self.make_due(name)

    async def _restore_lines(self) -> None:
        async for page in self._queue.parked_by_receiver():
            for job_id, name in page.items():
                _join_line(self._receiver(name), job_id)

    async def _move_idle_lines(self) -> None:
        """Make the first callback due in up to `_MOST_MOVED` lines of receivers to which no
        callback is being sent, waits aside, or was made due.
        """
        idle = (
            name
            for name, receiver in self._receivers.items()
            if receiver.line
            and not receiver.inside
            and not self._count_arriving(receiver)
            and not receiver.breaker.withheld_s()
        )
        for name in list(islice(idle, _MOST_MOVED)):
            await self.make_due(name, most=1)

    def _count_arriving(self, receiver: _Receiver) -> int:
        """Return the number of callbacks that were made due and may still arrive."""
        now = self._clock()
        receiver.arriving = {
            each: until for each, until in receiver.arriving.items() if until > now
        }
        return len(receiver.arriving)

    @asynccontextmanager
    async def _send_permit(self, receiver: _Receiver, job_id: str) -> AsyncGenerator[SendPermit]:
        # If the breaker opened while this callback waited, the callback is not sent.
        if withheld_s := receiver.breaker.withheld_s():
            yield self._withhold(receiver, job_id, withheld_s)
            return
        permit, key, began = SendPermit(), object(), self._clock()
        receiver.began[key] = began
        probe = receiver.breaker.begin()
        try:
            yield permit
        finally:
            del receiver.began[key]
            receiver.took(self._clock() - began)
            receiver.breaker.end(permit.answered, probe=probe)

    def _receiver(self, name: str) -> _Receiver:
        receiver = self._receivers.pop(name, None)
        if receiver is None:
            breaker = Breaker(self._breaker, clock=self._clock)
            receiver = _Receiver(asyncio.Semaphore(self._at_once), breaker)
        self._receivers[name] = receiver
        if len(self._receivers) > _MOST_REMEMBERED:
            idle = next((name for name, each in self._receivers.items() if each.inside == 0), None)
            if idle is not None:
                del self._receivers[idle]
        return receiver

    def _most_now(self, receiver: _Receiver) -> int:
        """Return how many callbacks may be sent or wait aside at the speed of the receiver."""
        aside = int(self._at_once * _LONGEST_ASIDE_S / receiver.expected_s(self._clock()))
        return min(self._at_once + aside, self._most_inside)

    def _withhold(self, receiver: _Receiver, job_id: str, withheld_s: float) -> SendPermit:
        _join_line(receiver, job_id)
        return SendPermit(self._schedule_retry(receiver, not_before_s=withheld_s), is_withheld=True)

    def _put_off(self, receiver: _Receiver, job_id: str) -> SendPermit:
        _join_line(receiver, job_id)
        return SendPermit(self._reserve_time(receiver))

    def _reserve_time(self, receiver: _Receiver) -> float:
        """Return the seconds after which a callback in the line becomes due by itself.

        The result is the time until the expected turn of the callback. If the turn is more than a
        minute away, `_schedule_retry` chooses the time. Before the first callback to the receiver
        has ended, the speed of the receiver is unknown, so the callbacks of a short line become due
        soon, at random times.
        """
        now = self._clock()
        expected_s = receiver.expected_s(now)
        if receiver.best_s is None and len(receiver.line) <= _MOST_GUESSED:
            return min(random.uniform(2, 4) * expected_s, _LONGEST_PARKED_S)
        each_s = expected_s / self._at_once
        turn_at = max(receiver.booked_until, now + receiver.inside * each_s) + each_s
        if turn_at - now > _LONGEST_PARKED_S:
            return self._schedule_retry(receiver, not_before_s=_LONGEST_PARKED_S)
        receiver.booked_until = turn_at
        return turn_at - now

    def _schedule_retry(self, receiver: _Receiver, *, not_before_s: float) -> float:
        """Return the seconds after which a callback becomes due by itself. They grow with each
        call.
        """
        now = self._clock()
        at = max(receiver.next_due_at, now + not_before_s)
        receiver.next_due_at = at + min(receiver.expected_s(now) / self._at_once, 1 / _WAKES_PER_S)
        return at - now


def _join_line(receiver: _Receiver, job_id: str) -> None:
    """Add a callback at the end of the line, unless the line contains the callback or is too
    long.
    """
    if len(receiver.line) < _LONGEST_LINE:
        receiver.line.setdefault(job_id)


async def _acquire(slots: asyncio.Semaphore) -> bool:
    try:
        async with asyncio.timeout(_LONGEST_ASIDE_S):
            return await slots.acquire()
    except TimeoutError:
        return False
