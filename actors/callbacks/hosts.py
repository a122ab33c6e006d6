"""How many callbacks go to one receiver at once, and when those beyond may come again.

A few wait in memory ("aside") for their turn, so that a receiver that answers fast is kept busy.
The others are to be parked, each until the time at which its turn is expected, so that a receiver
that hangs blocks neither other receivers nor the queue. While a receiver's breaker is open, all of
its callbacks are to be parked.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from actors.callbacks.breaker import Breaker, BreakerLimits

_LONGEST_ASIDE_S = 1.0
_LONGEST_PARKED_S = 60.0
_MOST_REMEMBERED = 1000
_FIRST_GUESS_S = 0.25
_FORGETTING = 1.2


@dataclass(slots=True)
class Turn:
    """A callback's turn at a receiver, or how long to wait before coming again."""

    wait_s: float = 0.0
    """0 if it is its turn."""
    is_withheld: bool = False
    """It waits because the breaker is open, not because others are before it."""
    answered: bool | None = None
    """Whether the receiver works; whoever had the turn sets it."""


@dataclass(slots=True)
class _Host:
    turns: asyncio.Semaphore
    breaker: Breaker
    inside: int = 0
    """Callbacks that are being sent or wait aside."""
    best_s: float | None = None
    """Shortest recent time of a callback; None before the first has ended.

    Not the mean, which in a burst shows how busy this service is, not how fast the receiver is.
    """
    began: dict[object, float] = field(default_factory=dict)
    """Start times of the callbacks that are being sent, the oldest first."""
    booked_until: float = 0.0
    """Until when the parked ones will keep the receiver busy."""

    def expected_s(self, now: float) -> float:
        """How long a callback takes, or the age of the oldest one if that is high already."""
        age_s = now - next(iter(self.began.values()), now)
        if age_s > _LONGEST_ASIDE_S:
            return age_s
        return _FIRST_GUESS_S if self.best_s is None else max(self.best_s, 0.001)

    def took(self, seconds: float) -> None:
        before_s = seconds if self.best_s is None else self.best_s
        self.best_s = min(seconds, _FORGETTING * before_s)


class Hosts:
    """The receivers that callbacks go to; a thousand idle ones are remembered."""

    def __init__(
        self,
        *,
        at_once: int,
        most_inside: int,
        breaker: BreakerLimits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`at_once` are sent to one receiver at a time; `most_inside` counts those aside too."""
        self._clock = clock
        self._breaker = breaker
        self._at_once = at_once
        self._most_inside = max(most_inside, at_once)
        self._hosts: dict[str, _Host] = {}
        """The least recently used first."""

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncGenerator[Turn]:
        host = self._host(name)
        if withheld_s := host.breaker.withheld_s():
            yield Turn(withheld_s, is_withheld=True)
            return
        if host.inside >= self._room(host):
            yield Turn(self._book(host))
            return
        host.inside += 1
        try:
            if not await _acquire(host.turns):
                yield Turn(self._book(host))
                return
            try:
                async with self._try(host) as turn:
                    yield turn
            finally:
                host.turns.release()
        finally:
            host.inside -= 1

    @asynccontextmanager
    async def _try(self, host: _Host) -> AsyncGenerator[Turn]:
        if withheld_s := host.breaker.withheld_s():  # it opened meanwhile
            yield Turn(withheld_s, is_withheld=True)
            return
        turn, key, began = Turn(), object(), self._clock()
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
            idle = next(name for name, host in self._hosts.items() if host.inside == 0)
            del self._hosts[idle]
        return host

    def _new_host(self) -> _Host:
        breaker = Breaker(self._breaker, clock=self._clock)
        return _Host(asyncio.Semaphore(self._at_once), breaker)

    def _room(self, host: _Host) -> int:
        aside = int(self._at_once * _LONGEST_ASIDE_S / host.expected_s(self._clock()))
        return min(self._at_once + aside, self._most_inside)

    def _book(self, host: _Host) -> float:
        """The next time at which the receiver can be expected to be free.

        Before its first answer this is unknown, so callbacks come again soon, spread out.
        """
        now = self._clock()
        expected_s = host.expected_s(now)
        if host.best_s is None:
            return min(random.uniform(2, 4) * expected_s, _LONGEST_PARKED_S)
        each_s = expected_s / self._at_once
        host.booked_until = max(host.booked_until, now + host.inside * each_s) + each_s
        return min(host.booked_until - now, _LONGEST_PARKED_S)


async def _acquire(turns: asyncio.Semaphore) -> bool:
    try:
        async with asyncio.timeout(_LONGEST_ASIDE_S):
            return await turns.acquire()
    except TimeoutError:
        return False
