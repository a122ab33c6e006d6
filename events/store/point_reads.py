"""Reads of one value by its key from a SQLite file, for what many requests ask.

SQLAlchemy over aiosqlite changes threads five times for one read, and this once.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

_THREADS = 2
"""One that waits for the disk leaves the other to those whose pages are in memory."""


class PointReads:
    """Connections of their own, one in each thread, opened when they are first used."""

    def __init__(self, path: str, *, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="point-read")
        self._local = threading.local()
        self._open: set[sqlite3.Connection] = set()
        self._is_closed = False

    async def value(self, query: str, key: str) -> Any | None:
        """The one column that a query with one parameter finds; None where it finds no row.

        Raises sqlite3.Error, and TimeoutError where it takes longer than a statement may wait, as
        where both threads hang on a disk.
        """
        if self._is_closed:
            raise sqlite3.ProgrammingError("the connections were closed")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._busy_timeout_s):
            return await loop.run_in_executor(self._threads, self._read, query, key)

    async def close(self) -> None:
        """Reads that were asked for before end first."""
        self._is_closed = True
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._open:
            connection.close()
        self._open.clear()

    def _read(self, query: str, key: str) -> Any | None:
        connection = self._connection()
        try:
            row = connection.execute(query, (key,)).fetchone()
        except sqlite3.Error:
            # The next read opens another: the file may be a new one by then.
            del self._local.connection
            self._open.discard(connection)
            with suppress(sqlite3.Error):
                connection.close()
            raise
        return None if row is None else row[0]

    def _connection(self) -> sqlite3.Connection:
        known: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if known is not None:
            return known
        connection = sqlite3.connect(
            self._path,
            timeout=self._busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,  # `close` runs in another one, after them
        )
        self._local.connection = connection
        self._open.add(connection)
        return connection
