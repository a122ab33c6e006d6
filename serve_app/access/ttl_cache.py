"""Remembers rows that every request reads, for a few seconds."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Row = TypeVar("Row")


class TtlCache(Generic[Row]):
    """A row that exists is remembered for `ttl_s`; one that does not is loaded every time."""

    def __init__(
        self,
        load: Callable[[str], Awaitable[Row | None]],
        *,
        ttl_s: float,
        max_rows: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._ttl_s = ttl_s
        self._max_rows = max_rows
        self._clock = clock
        self._rows: dict[str, tuple[float, Row]] = {}
        self._drops = 0

    async def get(self, id: str) -> Row | None:
        now = self._clock()
        if (known := self._rows.get(id)) is not None and now - known[0] < self._ttl_s:
            return known[1]
        drops = self._drops
        row = await self._load(id)
        if row is None:
            self._rows.pop(id, None)
            return None
        if len(self._rows) >= self._max_rows:
            self._rows.clear()
        if drops == self._drops:
            self._rows[id] = (now, row)
        return row

    def drop(self, id: str) -> None:
        """Forget a row, also while it is being loaded: it may be older than a change."""
        self._drops += 1
        self._rows.pop(id, None)
