"""Turns at what a replica has little of, such as memory and threads. No owner takes it all."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from serve_app.refusals import NoTurn


@dataclass(slots=True, eq=False)
class _Turn:
    owner: str
    size: int
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class Turns:
    """So much of something is taken at a time. Others wait, first come, first served.

    Whoever waits for another turn of their own owner lets the other owners pass.
    """

    def __init__(self, total: int, *, per_owner: int, timeout_s: float) -> None:
        """`timeout_s` is how long a turn is waited for."""
        self._free = total
        self._per_owner = per_owner
        self._timeout_s = timeout_s
        self._taken: Counter[str] = Counter()
        self._waiting: list[_Turn] = []

    @asynccontextmanager
    async def take(self, owner: str, size: int = 1) -> AsyncGenerator[None]:
        """Raises NoTurn. What is larger than the share of an owner takes all of that share."""
        turn = _Turn(owner, min(size, self._per_owner))
        self._waiting.append(turn)
        self._begin()
        try:
            await self._wait(turn)
            yield
        finally:
            self._end(turn)

    async def _wait(self, turn: _Turn) -> None:
        if turn.begun.is_set():
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn.begun.wait()
        except TimeoutError as error:
            raise NoTurn from error

    def _begin(self) -> None:
        """Begin every turn that can, up to the first for which too little is free."""
        for turn in list(self._waiting):
            if self._taken[turn.owner] + turn.size > self._per_owner:
                continue
            if turn.size > self._free:
                return
            self._waiting.remove(turn)
            self._free -= turn.size
            self._taken[turn.owner] += turn.size
            turn.begun.set()

    def _end(self, turn: _Turn) -> None:
        if turn.begun.is_set():
            self._free += turn.size
            self._taken[turn.owner] -= turn.size
            self._taken += Counter()  # without the owners that have none
        else:
            self._waiting.remove(turn)
        self._begin()
