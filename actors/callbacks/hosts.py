"""Hosts: limits the concurrent callbacks to each receiver, and decides when waiting callbacks are
sent.

A few callbacks wait in memory for their turn ("aside"), so that a fast receiver is kept busy. All
further callbacks are parked on the queue, so a receiver that hangs blocks neither other receivers
nor the queue.

The parked callbacks of a receiver form a line in memory. When the receiver has room, the first
callbacks of the line are called: they are made due at once. A process that dies loses its lines and
its calls. Therefore each parked callback also has a time at which it becomes due without a call. If
the expected turn of the callback is less than a minute away, this time is the time of the turn.
Later turns get different times, at least ten per second, so that the callbacks do not all become
due at the same moment. While the circuit breaker of a receiver is open, all its callbacks are
parked in the same way.

The queue stores for each parked callback the receiver for which it waits, so `Lines` can restore
the lines after a start. A line moves when a callback to its receiver ends. If no callback to the
receiver is being sent, for example after a start, `Lines` calls the first callback of the line. The
end of this callback moves the line again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice

from events.delivery import JITTER
from events.errors import LogFull, LogUnavailable
from events.queue import AT_ONCE, CallbackQueue
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
"""The smallest number of a receiver's callbacks per second that become due without a call."""
_ON_THE_WAY_S = 30.0
"""Seconds for which a called delivery counts as on its way. If it has not arrived by then, its
place is given to another callback.
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
    """The turn of a callback at a receiver, or the time for which the callback must wait."""

    wait_s: float = 0.0
    """Seconds to wait, or 0 if the callback may be sent now."""
    is_withheld: bool = False
    """Whether the callback waits because the breaker is open."""
    answered: bool | None = None
    """Whether the receiver works, or None if unknown. The task that has the turn sets it."""


@dataclass(slots=True)
class _Host:
    turns: asyncio.Semaphore
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
    """Parked callbacks in the order in which they are called."""
    called: dict[str, float] = field(default_factory=dict)
    """The called callbacks, each with the time until which it counts as on its way."""

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


class Hosts:
    """The state of the thousand receivers that were used most recently."""

    def __init__(
        self,
        *,
        at_once: int,
        most_inside: int,
        breaker: BreakerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at_once` limits the callbacks that are sent to one receiver at the same time.

        `most_inside` limits the callbacks to one receiver that are sent or wait aside.
        """
        self._clock = clock
        self._breaker = breaker
        self._at_once = at_once
        self._most_inside = max(most_inside, at_once)
        self._hosts: dict[str, _Host] = {}
        """Receivers by name. The least recently used receiver is first."""

    @property
    def open_breakers(self) -> int:
        """Number of remembered receivers whose breaker is not closed."""
        return sum(not host.breaker.is_closed for host in self._hosts.values())

    @asynccontextmanager
    async def turn(self, name: str, callback: str) -> AsyncGenerator[SendPermit]:
        """Wait for the turn of `callback` at the receiver `name`."""
        host = self._host(name)
        host.called.pop(callback, None)
        if withheld_s := host.breaker.withheld_s():
            yield self._withhold(host, callback, withheld_s)
            return
        if host.inside >= self._room(host):
            yield self._put_off(host, callback)
            return
        host.line.pop(callback, None)
        host.inside += 1
        try:
            if not await _acquire(host.turns):
                yield self._put_off(host, callback)
                return
            try:
                async with self._try(host, callback) as turn:
                    yield turn
            finally:
                host.turns.release()
        finally:
            host.inside -= 1

    def stand_in_line(self, name: str, callback: str) -> None:
        """Add a callback that is already parked to the receiver's line."""
        _stand_in_line(self._host(name), callback)

    def call(self, name: str, *, most: int | None = None) -> list[str]:
        """Remove as many callbacks from the line of a receiver as the receiver has room for.
        Returns the job ids of these callbacks.

        `most` limits the number of callbacks. The caller must make each of them due now. If that
        fails for some callbacks, the caller must pass these to `return_to_line`. Call this after
        each turn, because the end of a turn makes room.
        """
        host = self._hosts.get(name)
        if host is None or host.breaker.withheld_s():
            return []
        room = self._room(host) - host.inside - self._on_the_way(host)
        room = room if most is None else min(room, most)
        called = [host.line.popitem(last=False)[0] for _ in range(min(room, len(host.line)))]
        host.called |= dict.fromkeys(called, self._clock() + _ON_THE_WAY_S)
        return called

    def return_to_line(self, name: str, callbacks: Sequence[str]) -> None:
        """Return callbacks that `call` removed to the front of the line, in the same order."""
        host = self._host(name)
        for callback in reversed(callbacks):
            host.called.pop(callback, None)
            host.line[callback] = None
            host.line.move_to_end(callback, last=False)

    def forget(self, callback: str) -> list[str]:
        """Forget a callback of which nothing is due any more. Returns the receivers that had called
        it. They have room again, so their lines must be moved.
        """
        for host in self._hosts.values():
            host.line.pop(callback, None)
        return [
            name
            for name, host in self._hosts.items()
            if host.called.pop(callback, None) is not None
        ]

    def idle_lines(self, most: int) -> list[str]:
        """Return at most `most` receivers whose lines do not move.

        A line does not move if no callback to its receiver is being sent, waits aside or is
        on its way.
        """
        found = (
            name
            for name, host in self._hosts.items()
            if host.line
            and not host.inside
            and not self._on_the_way(host)
            and not host.breaker.withheld_s()
        )
        return list(islice(found, most))

    def _on_the_way(self, host: _Host) -> int:
        """The number of callbacks that were called and may still arrive."""
        now = self._clock()
        host.called = {each: until for each, until in host.called.items() if until > now}
        return len(host.called)

    @asynccontextmanager
    async def _try(self, host: _Host, callback: str) -> AsyncGenerator[SendPermit]:
        # If the breaker opened while this callback waited, the callback is not sent.
        if withheld_s := host.breaker.withheld_s():
            yield self._withhold(host, callback, withheld_s)
            return
        turn, key, began = SendPermit(), object(), self._clock()
        host.began[key] = began
        probe = host.breaker.begin()
        try:
            yield turn
        finally:
            del host.began[key]
            host.took(self._clock() - began)
            host.breaker.end(turn.answered, probe=probe)

    def _host(self, name: str) -> _Host:
        host = self._hosts.pop(name, None) or self._new_host()
        self._hosts[name] = host
        if len(self._hosts) > _MOST_REMEMBERED:
            idle = next((name for name, host in self._hosts.items() if host.inside == 0), None)
            if idle is not None:
                del self._hosts[idle]
        return host

    def _new_host(self) -> _Host:
        breaker = Breaker(self._breaker, clock=self._clock)
        return _Host(asyncio.Semaphore(self._at_once), breaker)

    def _room(self, host: _Host) -> int:
        aside = int(self._at_once * _LONGEST_ASIDE_S / host.expected_s(self._clock()))
        return min(self._at_once + aside, self._most_inside)

    def _withhold(self, host: _Host, callback: str, withheld_s: float) -> SendPermit:
        _stand_in_line(host, callback)
        return SendPermit(self._schedule_retry(host, not_before_s=withheld_s), is_withheld=True)

    def _put_off(self, host: _Host, callback: str) -> SendPermit:
        _stand_in_line(host, callback)
        return SendPermit(self._reserve_time(host))

    def _reserve_time(self, host: _Host) -> float:
        """Seconds after which a callback that found no room becomes due again.

        The result is the time until the expected turn of the callback. If the turn is more than a
        minute away, `_schedule_retry` chooses the time. Before the first callback to the receiver
        has ended, the speed of the receiver is unknown, so the callbacks of a short line become due
        soon, at random times.
        """
        now = self._clock()
        expected_s = host.expected_s(now)
        if host.best_s is None and len(host.line) <= _MOST_GUESSED:
            return min(random.uniform(2, 4) * expected_s, _LONGEST_PARKED_S)
        each_s = expected_s / self._at_once
        turn_at = max(host.booked_until, now + host.inside * each_s) + each_s
        if turn_at - now > _LONGEST_PARKED_S:
            return self._schedule_retry(host, not_before_s=_LONGEST_PARKED_S)
        host.booked_until = turn_at
        return turn_at - now

    def _schedule_retry(self, host: _Host, *, not_before_s: float) -> float:
        """Seconds after which a callback becomes due again. Each call returns a later time."""
        now = self._clock()
        at = max(host.next_due_at, now + not_before_s)
        host.next_due_at = at + min(host.expected_s(now) / self._at_once, 1 / _WAKES_PER_S)
        return at - now


def _stand_in_line(host: _Host, callback: str) -> None:
    """Add a callback at the end of the line, unless the line contains the callback or is too
    long.
    """
    if len(host.line) < _LONGEST_LINE:
        host.line.setdefault(callback)


async def _acquire(turns: asyncio.Semaphore) -> bool:
    try:
        async with asyncio.timeout(_LONGEST_ASIDE_S):
            return await turns.acquire()
    except TimeoutError:
        return False


_PERIOD_S = 1.0
_MOST_MOVED = 5
"""Largest number of lines that `Lines` moves per period. If all these receivers hang, their
callbacks occupy only a small part of the deliveries in flight.
"""


class Lines:
    def __init__(self, hosts: Hosts, queue: CallbackQueue) -> None:
        self._hosts = hosts
        self._queue = queue

    async def run(self) -> None:
        """Read the lines from the queue, then move them until cancelled."""
        await keep_trying(self._find, on=LogUnavailable)
        while True:
            await keep_trying(self._move, on=(LogUnavailable, LogFull))
            await asyncio.sleep(_PERIOD_S)

    async def call(self, receiver: str, *, most: int | None = None) -> None:
        """Make as many callbacks due as the receiver has room for. Call this after each turn.

        `most` limits the number of callbacks. Raises LogUnavailable, LogFull.
        """
        called = deque(self._hosts.call(receiver, most=most))
        try:
            while called:
                await self._queue.park(called[0], AT_ONCE)
                called.popleft()
        except (LogUnavailable, LogFull):
            self._hosts.return_to_line(receiver, called)
            raise

    async def leave(self, callback: str) -> None:
        """Give the place of a callback of which nothing is due any more to the next callbacks.
        Raises LogUnavailable, LogFull.
        """
        for receiver in self._hosts.forget(callback):
            await self.call(receiver)

    async def _find(self) -> None:
        async for page in self._queue.in_line():
            for job_id, receiver in page.items():
                self._hosts.stand_in_line(receiver, job_id)

    async def _move(self) -> None:
        """Make the first callback due in up to `_MOST_MOVED` lines that do not move."""
        for receiver in self._hosts.idle_lines(_MOST_MOVED):
            await self.call(receiver, most=1)
