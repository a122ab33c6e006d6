"""Receivers: limits the concurrent callbacks to each receiver, and decides when waiting callbacks
are sent.

A few callbacks to a receiver wait in memory, so that a fast receiver is kept busy. All further
callbacks are parked on the queue, so a receiver that hangs delays no callbacks to other receivers.

Each receiver has a waiting list of its parked callbacks. When a callback to the receiver ends, the
first callbacks of the list are made due at once. The list is lost if the process dies. Therefore
each parked callback also becomes due at a fixed time: at its expected turn, if that is less than a
minute away. Later callbacks become due at different times, at least ten per second, so that their
load is spread. While the circuit breaker of a receiver is open, all its callbacks are parked in the
same way.

The queue stores the receiver of each parked callback, so `run` can restore the waiting lists after
a start. If no callback to a receiver is being sent, for example after a start, `run` makes the
first callback of its waiting list due. The end of this callback makes the next callbacks due.
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
_LONGEST_WAIT_S = 1.0
_LONGEST_PARKED_S = 60.0
_MOST_REMEMBERED = 1000
_MOST_WAITING = 100_000
_MOST_GUESSED = 128
"""Largest number of callbacks that are parked for a short time before the speed of the receiver is
known.
"""
_WAKES_PER_S = 10.0
"""Smallest number of a receiver's parked callbacks per second that become due without `make_due`.
"""
_ARRIVES_WITHIN_S = 30.0
"""Seconds after `make_due` within which a callback should arrive from the queue. If it does not,
another callback is made due instead.
"""
_PERIOD_S = 1.0
"""Seconds between two searches for idle receivers with waiting callbacks."""
_MOST_WOKEN = 5
"""Largest number of idle receivers per period for which a callback is made due. If all these
receivers hang, their callbacks use only a small share of the deliveries in flight.
"""
_FIRST_GUESS_S = 0.25
_FORGETTING = 1.2


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    failures: int = constant("CALLBACK_BREAKER_FAILURES", 4)
    """Number of consecutive failures after which the breaker opens."""
    open_s: float = constant("CALLBACK_BREAKER_OPEN_S", 15.0)
    """Length of the first open period in seconds."""
    longest_open_s: float = constant("CALLBACK_BREAKER_LONGEST_S", 600.0)
    jitter: float = JITTER
    """Largest random change of an open period, as a fraction of the period."""


class Breaker:
    """A circuit breaker for one receiver (M. Nygard, Release It!, "Circuit Breaker").

    While the breaker is closed, every callback is sent. After a number of consecutive failures the
    breaker opens for a period in which no callback is sent. Then one callback is sent as a probe.
    If the probe fails, the breaker opens for twice as long, up to a limit. The breaker closes when
    any attempt shows that the receiver works. The state is in memory only.
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
        """Return the seconds for which a callback must wait, or 0 if an attempt may be made now.

        While the breaker is open, the waits end at random moments shortly after the end of the
        period. So few callbacks become due while the probe is sent.
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
        """Record the end of an attempt. See `SendPermit.answered`."""
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
    """Whether the attempt showed that the receiver works, or None if it showed nothing. The sender
    sets this value.
    """


@dataclass(slots=True)
class _Receiver:
    semaphore: asyncio.Semaphore
    """Limits the callbacks that are being sent."""
    breaker: Breaker
    inside: int = 0
    """Number of callbacks that are being sent or wait in memory."""
    best_s: float | None = None
    """Shortest recent duration of a callback in seconds, or None if no callback has ended. In a
    burst, the mean would measure this service and not the receiver.
    """
    began: dict[object, float] = field(default_factory=dict)
    """Start times of the callbacks that are being sent, the earliest first."""
    booked_until: float = 0.0
    """Expected turn of the last callback that was parked until its expected turn."""
    next_due_at: float = 0.0
    """Earliest time at which `_schedule_retry` may let the next callback become due."""
    waiting: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """The waiting list: the job ids of parked callbacks, in the order in which they become due."""
    arriving: dict[str, float] = field(default_factory=dict)
    """The latest expected time of arrival of each callback that was made due, by job id."""

    def expected_s(self, now: float) -> float:
        """Return the expected duration of a callback in seconds.

        If the earliest callback that is being sent takes longer than `_LONGEST_WAIT_S`, the result
        is its duration until now.
        """
        age_s = now - next(iter(self.began.values()), now)
        if age_s > _LONGEST_WAIT_S:
            return age_s
        return _FIRST_GUESS_S if self.best_s is None else max(self.best_s, 0.001)

    def took(self, seconds: float) -> None:
        before_s = seconds if self.best_s is None else self.best_s
        self.best_s = min(seconds, _FORGETTING * before_s)


class Receivers:
    """The state of the most recently used receivers. A callback is named by the id of its job."""

    def __init__(
        self,
        queue: CallbackQueue,
        *,
        at_once: int,
        most_active: int,
        breaker: BreakerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at_once` limits the callbacks that are being sent to one receiver.

        `most_active` limits the callbacks to one receiver that are being sent or wait in memory.
        """
        self._queue = queue
        self._clock = clock
        self._breaker = breaker
        self._at_once = at_once
        self._most_inside = max(most_active, at_once)
        self._receivers: dict[str, _Receiver] = {}
        """Receivers by name. The least recently used receiver is first."""

    @property
    def open_breakers(self) -> int:
        """Number of receivers whose breaker is not closed."""
        return sum(not each.breaker.is_closed for each in self._receivers.values())

    async def run(self) -> None:
        """Restore the waiting lists from the queue, then wake idle receivers until cancelled."""
        await keep_trying(self._restore_waiting, on=LogUnavailable)
        while True:
            await keep_trying(self._wake_idle_receivers, on=(LogUnavailable, LogFull))
            await asyncio.sleep(_PERIOD_S)

    @asynccontextmanager
    async def permit(self, name: str, job_id: str) -> AsyncGenerator[SendPermit]:
        """Wait until a callback may be sent to the receiver `name`. If the wait would be too long,
        the callback joins the waiting list, and the permit has a `wait_s`.
        """
        receiver = self._receiver(name)
        receiver.arriving.pop(job_id, None)
        if withheld_s := receiver.breaker.withheld_s():
            yield self._withhold(receiver, job_id, withheld_s)
            return
        if receiver.inside >= self._most_now(receiver):
            yield self._put_off(receiver, job_id)
            return
        receiver.waiting.pop(job_id, None)
        receiver.inside += 1
        try:
            if not await _acquire(receiver.semaphore):
                yield self._put_off(receiver, job_id)
                return
            try:
                async with self._send_permit(receiver, job_id) as permit:
                    yield permit
            finally:
                receiver.semaphore.release()
        finally:
            receiver.inside -= 1

    async def make_due(self, name: str, *, most: int | None = None) -> None:
        """Make the first waiting callbacks of a receiver due, as many as may be sent or wait in
        memory now, and at most `most`. Call this after the end of each permit.

        Raises LogUnavailable, LogFull.
        """
        receiver = self._receivers.get(name)
        if receiver is None or receiver.breaker.withheld_s():
            return
        free = self._most_now(receiver) - receiver.inside - self._count_arriving(receiver)
        free = min(len(receiver.waiting), free if most is None else min(free, most))
        chosen = deque(receiver.waiting.popitem(last=False)[0] for _ in range(free))
        receiver.arriving |= dict.fromkeys(chosen, self._clock() + _ARRIVES_WITHIN_S)
        try:
            while chosen:
                await self._queue.park(chosen[0], AT_ONCE)
                chosen.popleft()
        except (LogUnavailable, LogFull):
            receiver = self._receiver(name)  # It may have been forgotten in the meantime.
            for job_id in reversed(chosen):  # Keeps the order.
                receiver.arriving.pop(job_id, None)
                receiver.waiting[job_id] = None
                receiver.waiting.move_to_end(job_id, last=False)
            raise

    async def remove(self, job_id: str) -> None:
        """Forget a job whose delivery has nothing left to send now. If a callback of the job was
        made due, other callbacks to its receiver are made due instead.

        Raises LogUnavailable, LogFull.
        """
        for receiver in self._receivers.values():
            receiver.waiting.pop(job_id, None)
        for name, receiver in list(self._receivers.items()):
            if receiver.arriving.pop(job_id, None) is not None:
                await self.make_due(name)

    async def _restore_waiting(self) -> None:
        async for page in self._queue.parked_by_receiver():
            for job_id, name in page.items():
                _add_waiting(self._receiver(name), job_id)

    async def _wake_idle_receivers(self) -> None:
        """Make the first waiting callback due for up to `_MOST_WOKEN` receivers that have no
        callback which is being sent, waits in memory, or was made due.
        """
        idle = (
            name
            for name, receiver in self._receivers.items()
            if receiver.waiting
            and not receiver.inside
            and not self._count_arriving(receiver)
            and not receiver.breaker.withheld_s()
        )
        for name in list(islice(idle, _MOST_WOKEN)):
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
        # The breaker may have opened while this callback waited in memory.
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
        """Return how many callbacks may be sent or wait in memory at the speed of the receiver."""
        in_memory = int(self._at_once * _LONGEST_WAIT_S / receiver.expected_s(self._clock()))
        return min(self._at_once + in_memory, self._most_inside)

    def _withhold(self, receiver: _Receiver, job_id: str, withheld_s: float) -> SendPermit:
        _add_waiting(receiver, job_id)
        return SendPermit(self._schedule_retry(receiver, not_before_s=withheld_s), is_withheld=True)

    def _put_off(self, receiver: _Receiver, job_id: str) -> SendPermit:
        _add_waiting(receiver, job_id)
        return SendPermit(self._reserve_time(receiver))

    def _reserve_time(self, receiver: _Receiver) -> float:
        """Return the seconds until the expected turn of a callback that joins the waiting list.

        If the turn is more than a minute away, `_schedule_retry` chooses the time. Before the first
        callback to the receiver has ended, the speed of the receiver is unknown, so the callbacks
        of a short waiting list become due soon, at random times.
        """
        now = self._clock()
        expected_s = receiver.expected_s(now)
        if receiver.best_s is None and len(receiver.waiting) <= _MOST_GUESSED:
            return min(random.uniform(2, 4) * expected_s, _LONGEST_PARKED_S)
        each_s = expected_s / self._at_once
        turn_at = max(receiver.booked_until, now + receiver.inside * each_s) + each_s
        if turn_at - now > _LONGEST_PARKED_S:
            return self._schedule_retry(receiver, not_before_s=_LONGEST_PARKED_S)
        receiver.booked_until = turn_at
        return turn_at - now

    def _schedule_retry(self, receiver: _Receiver, *, not_before_s: float) -> float:
        """Return the seconds until a due time that is later than that of the previous call."""
        now = self._clock()
        at = max(receiver.next_due_at, now + not_before_s)
        receiver.next_due_at = at + min(receiver.expected_s(now) / self._at_once, 1 / _WAKES_PER_S)
        return at - now


def _add_waiting(receiver: _Receiver, job_id: str) -> None:
    """Append a callback to the waiting list, unless it is in the list or the list is full."""
    if len(receiver.waiting) < _MOST_WAITING:
        receiver.waiting.setdefault(job_id)


async def _acquire(semaphore: asyncio.Semaphore) -> bool:
    try:
        async with asyncio.timeout(_LONGEST_WAIT_S):
            return await semaphore.acquire()
    except TimeoutError:
        return False
