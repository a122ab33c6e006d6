"""The lines before receivers (`hosts.py`), moved on, and found again after a start.

A line is in memory. Each callback in it is parked on the queue, and says there what it stands in
line for. A line moves as those before it end; one that does not, as after a start, is moved by its
first callback: what follows if that is delivered comes as fast as the receiver takes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from actors.callbacks.hosts import Hosts
from events.errors import LogFull, LogUnavailable
from events.queue import AT_ONCE, CallbackQueue
from events.retry import keep_trying
from events.wire.callback_keys import PARTS

_PERIOD_S = 1.0
_MOST_MOVED = 5
"""So many lines are moved in each period: their receivers may all hang."""


class Lines:
    def __init__(self, hosts: Hosts, queue: CallbackQueue) -> None:
        self._hosts = hosts
        self._queue = queue

    async def run(self, parts: Sequence[str] = PARTS) -> None:
        """The lines of those whose callbacks are in these parts of the queue, until cancelled."""
        await keep_trying(lambda: self._find(parts), on=LogUnavailable)
        while True:
            await keep_trying(self._move, on=(LogUnavailable, LogFull))
            await asyncio.sleep(_PERIOD_S)

    async def call(self, receiver: str) -> None:
        """Let those come for whom the receiver has room now: to be done after each turn.

        Raises LogUnavailable, LogFull.
        """
        await self._call(self._hosts.call(receiver))

    async def _find(self, parts: Sequence[str]) -> None:
        async for page in self._queue.in_line(parts):
            for key, receiver in page.items():
                self._hosts.stand_in_line(receiver, key)

    async def _move(self) -> None:
        await self._call(self._hosts.call_first(_MOST_MOVED))

    async def _call(self, keys: list[str]) -> None:
        for key in keys:
            await self._queue.park(key, AT_ONCE)
