"""TtlCache: caches database rows that every request reads, for a few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


class TtlCache(Generic[Row]):
    """Caches each row for `ttl_s` seconds. A row that is missing is looked up every time.

    Callers of `get` during a load wait for this load. If the load finds no row, these callers share
    one more load, because the row may have been added since the first load began.
    """

    def __init__(
        self,
        load: Callable[[str], Coroutine[Any, Any, Row | None]],
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
        self._loading: dict[str, asyncio.Task[Row | None]] = {}

    async def get(self, id: str) -> Row | None:
        now = self._clock()
        if (known := self._rows.get(id)) is not None and now - known[0] < self._ttl_s:
            return known[1]
        if (earlier := self._loading.get(id)) is not None:
            row = await asyncio.shield(earlier)
            if row is not None:
                return row
        later = self._loading.get(id)
        if later is None or later is earlier:
            later = self._begin(id, now)
        return await asyncio.shield(later)

    def last(self, id: str) -> Row | None:
        """Return the last row that was found, however old it is."""
        known = self._rows.get(id)
        return None if known is None else known[1]

    def _begin(self, id: str, now: float) -> asyncio.Task[Row | None]:
        """Load the row in its own task, which continues for others if this caller is cancelled."""
        loading = asyncio.create_task(self._load(id))
        self._loading[id] = loading
        loading.add_done_callback(partial(self._end, id, now))
        return loading

    def _end(self, id: str, now: float, loading: asyncio.Task[Row | None]) -> None:
        failed = loading.cancelled() or loading.exception() is not None
        if self._loading.get(id) is not loading:
            return  # Another load has begun, or the row was dropped.
        del self._loading[id]
        if failed:
            return
        if (row := loading.result()) is None:
            self._rows.pop(id, None)
            return
        if len(self._rows) >= self._max_rows:
            self._rows.clear()
        self._rows[id] = (now, row)

    def drop(self, id: str) -> None:
        """Remove a row from the cache. The result of a load in progress is not cached either."""
        self._rows.pop(id, None)
        self._loading.pop(id, None)
