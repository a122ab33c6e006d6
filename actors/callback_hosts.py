"""How many callbacks go to one receiver at once, and when those beyond may come again.

A few wait aside for their turn, so that a receiver that answers fast is kept busy. The others are
to be parked, each until its own turn can be expected from how long the receiver takes, so that a
receiver that hangs holds neither the window nor the queue.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_LONGEST_ASIDE_S = 1.0
_LONGEST_PARKED_S = 60.0
_MOST_REMEMBERED = 1000
_FIRST_GUESS_S = 0.25
_SHARE_OF_THE_LAST = 0.3


@dataclass(slots=True)
class _Host:
    turns: asyncio.Semaphore
    inside: int = 0
    """Callbacks that are being sent or wait aside."""
    average_s: float | None = None
    """Moving average of what one took; None before the first has ended."""
    began: dict[object, float] = field(default_factory=dict)
    """When those that are being sent began, the oldest first."""
    booked_until: float = 0.0
    """Until when the parked ones will keep the receiver busy."""

    def expected_s(self, now: float) -> float:
        """How long one takes: no less than the oldest has been under way already."""
        known_s = _FIRST_GUESS_S if self.average_s is None else max(self.average_s, 0.001)
        return max(known_s, now - next(iter(self.began.values()), now))

    def took(self, seconds: float) -> None:
        before_s = seconds if self.average_s is None else self.average_s
        self.average_s = before_s + _SHARE_OF_THE_LAST * (seconds - before_s)


class Hosts:
    """The receivers that callbacks go to; a thousand idle ones are remembered."""

    def __init__(self, *, at_once: int, most_inside: int) -> None:
        self._at_once = at_once
        self._most_inside = max(most_inside, at_once)
        self._hosts: dict[str, _Host] = {}
        """The least recently used first."""

    @asynccontextmanager
    async def turn(self, name: str) -> AsyncGenerator[float]:
        """Gives 0 where it is the caller's turn, else after how many seconds to come again."""
        host = self._host(name)
        if host.inside >= self._room(host):
            yield self._book(host)
            return
        host.inside += 1
        try:
            if not await _acquire(host.turns):
                yield self._book(host)
                return
            try:
                key, began = object(), time.monotonic()
                host.began[key] = began
                yield 0.0
            finally:
                del host.began[key]
                host.took(time.monotonic() - began)
                host.turns.release()
        finally:
            host.inside -= 1

    def _host(self, name: str) -> _Host:
        host = self._hosts.pop(name, None) or _Host(asyncio.Semaphore(self._at_once))
        self._hosts[name] = host
        if len(self._hosts) > _MOST_REMEMBERED:
            idle = next((name for name, host in self._hosts.items() if host.inside == 0), name)
            del self._hosts[idle]
        return host

    def _room(self, host: _Host) -> int:
        aside = int(self._at_once * _LONGEST_ASIDE_S / host.expected_s(time.monotonic()))
        return min(self._at_once + aside, self._most_inside)

    def _book(self, host: _Host) -> float:
        """The next time at which the receiver can be expected to be free.

        Before its first answer that is a guess, so they come again soon, spread over some time.
        """
        now = time.monotonic()
        expected_s = host.expected_s(now)
        each_s = expected_s / self._at_once
        host.booked_until = max(host.booked_until, now + host.inside * each_s) + each_s
        wait_s = host.booked_until - now
        if host.average_s is None:
            wait_s = min(wait_s, random.uniform(2, 4) * expected_s)
        return min(wait_s, _LONGEST_PARKED_S)


async def _acquire(turns: asyncio.Semaphore) -> bool:
    try:
        async with asyncio.timeout(_LONGEST_ASIDE_S):
            return await turns.acquire()
    except TimeoutError:
        return False
