"""How many callbacks go to one receiver at once, and when those beyond may come again.

A few wait in memory ("aside") for their turn, so that a receiver that answers fast is kept busy.
The others are to be parked, so that a receiver that hangs blocks neither other receivers nor the
queue. They stand in line, and are called out of it as the receiver takes those before them
(`lines.py`), however fast or slow it has become meanwhile. That a line is in memory only, and
that one who is called may never come, is made good by the time until which each is parked: its
turn, if that is expected within a minute. Those behind come one after the other from then on, a
few a second, or as fast as the receiver takes them: that many wake up, and not all in each minute.
While a receiver's breaker is open, all of its callbacks are to be parked in the same way.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from actors.callbacks.breaker import Breaker, BreakerLimits

_LONGEST_ASIDE_S = 1.0
_LONGEST_PARKED_S = 60.0
_MOST_REMEMBERED = 1000
_LONGEST_LINE = 100_000
_MOST_GUESSED = 128
"""So many of a receiver that has not answered yet are told to come soon."""
_WAKES_PER_S = 10.0
"""How many of a receiver come again in a second without being called, if it takes no more."""
_ON_THE_WAY_S = 30.0
"""Who was called and has not come by then has gone another way, or to another instance."""
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
    """Until when the parked ones will keep the receiver busy, as far as their turns are known."""
    wakes_until: float = 0.0
    """Until when others will come again, one after the other."""
    line: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """The parked ones in the order in which they are called."""
    called: dict[str, float] = field(default_factory=dict)
    """Until when each that was called counts as on its way."""

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

    @property
    def open_breakers(self) -> int:
        """How many receivers fail, as far as they are remembered."""
        return sum(not host.breaker.is_closed for host in self._hosts.values())

    @asynccontextmanager
    async def turn(self, name: str, callback: str) -> AsyncGenerator[Turn]:
        """The turn of `callback` at the receiver `name`."""
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
        """Let one that is parked already stand in line."""
        _stand_in_line(self._host(name), callback)

    def call(self, name: str) -> list[str]:
        """Those in line for whom the receiver has room now; they are to come at once.

        To be asked after each turn: it is then that there is room.
        """
        host = self._hosts.get(name)
        if host is None or host.breaker.withheld_s():
            return []
        return self._call(host, self._room(host) - host.inside - self._on_the_way(host))

    def call_first(self, most_lines: int) -> list[str]:
        """The first of lines that do not move, since nobody of them is sent or on the way."""
        called: list[str] = []
        for host in self._hosts.values():
            if len(called) == most_lines:
                break
            is_still = host.line and not host.inside and not self._on_the_way(host)
            if is_still and not host.breaker.withheld_s():
                called += self._call(host, 1)
        return called

    def _on_the_way(self, host: _Host) -> int:
        """How many were called and may still come."""
        now = self._clock()
        host.called = {each: until for each, until in host.called.items() if until > now}
        return len(host.called)

    def _call(self, host: _Host, most: int) -> list[str]:
        called = [host.line.popitem(last=False)[0] for _ in range(min(most, len(host.line)))]
        host.called |= dict.fromkeys(called, self._clock() + _ON_THE_WAY_S)
        return called

    @asynccontextmanager
    async def _try(self, host: _Host, callback: str) -> AsyncGenerator[Turn]:
        if withheld_s := host.breaker.withheld_s():  # it opened meanwhile
            yield self._withhold(host, callback, withheld_s)
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

    def _withhold(self, host: _Host, callback: str, withheld_s: float) -> Turn:
        _stand_in_line(host, callback)
        return Turn(self._book_wake(host, not_before_s=withheld_s), is_withheld=True)

    def _put_off(self, host: _Host, callback: str) -> Turn:
        _stand_in_line(host, callback)
        return Turn(self._book(host))

    def _book(self, host: _Host) -> float:
        """In how many seconds to come again: at the next time at which the receiver can be
        expected to be free, or, if that is more than a minute away, at the next free time then.

        Before its first answer this is unknown, so callbacks come again soon, spread out.
        """
        now = self._clock()
        expected_s = host.expected_s(now)
        if host.best_s is None and len(host.line) <= _MOST_GUESSED:
            return min(random.uniform(2, 4) * expected_s, _LONGEST_PARKED_S)
        each_s = expected_s / self._at_once
        turn_at = max(host.booked_until, now + host.inside * each_s) + each_s
        if turn_at - now > _LONGEST_PARKED_S:
            return self._book_wake(host, not_before_s=_LONGEST_PARKED_S)
        host.booked_until = turn_at
        return turn_at - now

    def _book_wake(self, host: _Host, *, not_before_s: float) -> float:
        """In how many seconds to come again, after all others for whom this was asked."""
        now = self._clock()
        at = max(host.wakes_until, now + not_before_s)
        host.wakes_until = at + min(host.expected_s(now) / self._at_once, 1 / _WAKES_PER_S)
        return at - now


def _stand_in_line(host: _Host, callback: str) -> None:
    """At its end, or where it stands already."""
    if len(host.line) < _LONGEST_LINE:
        host.line.setdefault(callback)


async def _acquire(turns: asyncio.Semaphore) -> bool:
    try:
        async with asyncio.timeout(_LONGEST_ASIDE_S):
            return await turns.acquire()
    except TimeoutError:
        return False
