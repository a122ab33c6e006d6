"""The database: connections and transactions, on SQLite or Postgres, by SQLAlchemy Core."""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from events.errors import DatabaseUnavailable, OlderData, RowRefused, TextNotStorable
from events.retry import keep_trying, pause
from events.store.tables import DATA_FORMAT, METADATA, OFFSETS, PROJECTION_OFFSET

_THREADS = 2
"""One thread can read cached pages while the other thread waits for the disk."""


class PointReads:
    """Reads single values from SQLite, on one connection per thread."""

    def __init__(self, path: str, *, busy_timeout_s: float) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="point-read")
        self._local = threading.local()
        self._open: set[sqlite3.Connection] = set()
        self._is_closed = False

    async def value(self, query: str, key: str) -> Any | None:
        """Return the first value that the query finds with the parameter `key`, or None.

        Raises sqlite3.Error. Raises TimeoutError if the read takes longer than the busy time-out,
        for example because all threads of this class wait for the disk.
        """
        if self._is_closed:
            raise sqlite3.ProgrammingError("the connections were closed")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._busy_timeout_s):
            return await loop.run_in_executor(self._threads, self._read, query, key)

    async def close(self) -> None:
        """Close the connections after the pending reads."""
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
            # The next read opens a new connection, because the file may have been replaced.
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
            # `close` runs in another thread, after the threads have ended.
            check_same_thread=False,
        )
        self._local.connection = connection
        self._open.add(connection)
        return connection


_CLOCKS_S = {
    "sqlite": sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double),
    "postgresql": sa.literal_column("extract(epoch FROM clock_timestamp())::float8", sa.Double),
}

_SURROGATE = re.compile("[\ud800-\udfff]")

# The numbers of the locks are arbitrary. An application in the same database must not use them.
_PREPARE_LOCK = 0x6461726B
_DATA_FORMAT_VERSION = 1
"""The format of the data since version 0.2.0."""
ENDPOINTS_LOCK = 0x6461726C
"""The lock of transactions that count endpoints before they write an endpoint."""


def lock_of(subject: str) -> int:
    """Return the lock of transactions that change the same subject, which is any text."""
    text = subject.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=True)


@contextmanager
def _reached() -> Generator[None]:
    """Convert errors of drivers to RowRefused for a refused value, or else DatabaseUnavailable."""
    try:
        yield
    except (DBAPIError, PoolExhausted, OSError, sqlite3.Error) as error:
        if _is_about_a_row(error):
            raise RowRefused(f"The database refused a row: {type(error).__name__}.") from None
        raise DatabaseUnavailable from error


def _is_about_a_row(error: Exception) -> bool:
    """Return whether the database refused a value of a row.

    SQLAlchemy has no DataError for asyncpg; class 22 of the SQL states is "data exception".
    """
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    return isinstance(error, DataError | IntegrityError) or str(state).startswith("22")


def _add_missing_parts(connection: sa.Connection) -> None:
    """Add the columns and indexes of this version to tables that an earlier version created.

    An earlier version may still run. It writes no value into these columns, so they are nullable.
    """
    inspector = sa.inspect(connection)
    for table in METADATA.sorted_tables:
        existing = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in existing:
                assert column.nullable, f"{table.name}.{column.name} was added and is required"
                kind = column.type.compile(connection.dialect)
                statement = f'ALTER TABLE {table.name} ADD COLUMN "{column.name}" {kind}'
                connection.execute(sa.text(statement))
        indexes = {index["name"] for index in inspector.get_indexes(table.name)}
        for index in table.indexes:
            name = str(index.name)
            if indexes.isdisjoint((name, *_rebuilt(name))):
                index.create(connection)


class Database:
    """Connections to one database. Each connection is opened at its first use.

    Methods that use a connection raise DatabaseUnavailable if the database cannot be reached, is
    locked or full, or is not prepared yet.
    """

    def __init__(self, url: str, *, connections: int = 10, busy_timeout_s: float = 10.0) -> None:
        """`connections` is the largest number of connections at a time.

        `busy_timeout_s` is the largest time in seconds that a statement waits for a connection, for
        another writer, or for the server.
        """
        self._busy_timeout_s = busy_timeout_s
        parsed = sa.make_url(url)
        self._is_sqlite = parsed.get_backend_name() == "sqlite"
        # With isolation_level None, the driver opens no transactions, because `write` opens them.
        driver = (
            {"isolation_level": None} if self._is_sqlite else {"command_timeout": busy_timeout_s}
        )
        self._engine = create_async_engine(
            url,
            connect_args={"timeout": busy_timeout_s, **driver},
            pool_size=connections,
            max_overflow=0,
            pool_timeout=busy_timeout_s,
            hide_parameters=True,  # Errors are logged, and must not contain prompts.
            # With this check, no request fails after a restart of the server.
            pool_pre_ping=not self._is_sqlite,
        )
        sa.event.listen(self._engine.sync_engine, "before_cursor_execute", _require_storable)
        if self._is_sqlite:
            sa.event.listen(self._engine.sync_engine, "connect", _make_durable)
        # On SQLite, transactions of this process wait here for each other. A waiting transaction
        # then holds none of the connections, which reads need.
        self._writers = asyncio.Semaphore(1 if self._is_sqlite else connections)
        self._point_reads: PointReads | None = None
        if self._is_sqlite and parsed.database is not None:
            self._point_reads = PointReads(parsed.database, busy_timeout_s=busy_timeout_s)

    async def prepare(self) -> None:
        """Create missing tables and columns, also if other processes do so. Raises OlderData."""
        if self._is_sqlite:
            await self._write_ahead()
        async with self.write(lock=_PREPARE_LOCK) as connection:
            await _require_current(connection)
            await connection.run_sync(METADATA.create_all)
            await connection.run_sync(_add_missing_parts)
            rows = [
                {"name": DATA_FORMAT, "seq": _DATA_FORMAT_VERSION},
                {"name": PROJECTION_OFFSET, "seq": 0},
            ]
            await connection.execute(self.insert(OFFSETS).on_conflict_do_nothing(), rows)

    async def require_current(self) -> None:
        """Raise OlderData if a version before 0.2.0 wrote this database."""
        with _reached():
            async with self._engine.connect() as connection:
                await _require_current(connection)

    async def _write_ahead(self) -> None:
        """Set SQLite's journal mode to write-ahead, repeatedly while the file is in use."""
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                with _reached():
                    async with self._engine.connect() as connection:
                        await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                        return
            except DatabaseUnavailable:
                if time.monotonic() > deadline:
                    raise
            await pause(0.05)

    async def prepare_with_retries(self) -> None:
        """Call `prepare` until the database answers. A role may start before its database."""
        await keep_trying(
            self.prepare,
            on=DatabaseUnavailable,
            first_pause_s=1,
            longest_pause_s=1,
            fields={"action": "prepare_database"},
        )

    async def close(self) -> None:
        await self._engine.dispose()
        if self._point_reads is not None:
            await self._point_reads.close()

    async def fetch(self, query: sa.Select[*tuple[Any, ...]]) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        with _reached():
            async with self._engine.connect() as connection:
                return (await connection.execute(query)).all()

    def point_read(
        self, column: sa.ColumnElement[Any], *, by: sa.Column[str]
    ) -> Callable[[str], Awaitable[Any | None]]:
        """Return a function that reads one column of the row with a key. It returns None without a
        row.

        The value is returned as it is stored, so the type of the column must need no conversion.
        Use this for reads during requests, because on SQLite it costs a tenth of `fetch`.
        """
        query = sa.select(column).where(by == sa.bindparam("key"))
        text = str(query.compile(dialect=sqlite.dialect()))

        async def read(key: str) -> Any | None:
            if self._point_reads is None:
                rows = await self.fetch(query.params(key=key))
                return rows[0][0] if rows else None
            if not _is_storable(key):
                raise TextNotStorable
            with _reached():
                return await self._point_reads.value(text, key)

        return read

    async def execute(self, statement: sa.UpdateBase) -> int:
        """Run one statement that writes. Return the number of changed rows."""
        async with self.write() as connection:
            return (await connection.execute(statement)).rowcount

    @asynccontextmanager
    async def write(self, *, lock: int | None = None) -> AsyncGenerator[AsyncConnection]:
        """Open one transaction, and commit it if the block does not raise.

        Transactions with the same `lock` do not run at the same time. On SQLite, no two write
        transactions run at the same time.
        """
        with _reached():
            async with self._turn_to_write(), self._engine.begin() as connection:
                if self._is_sqlite:
                    # On SQLite, a transaction that reads before it writes does not wait for another
                    # writer, but fails with "database is locked". BEGIN IMMEDIATE waits.
                    await connection.exec_driver_sql("BEGIN IMMEDIATE")
                elif lock is not None:
                    await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock})")
                yield connection

    @asynccontextmanager
    async def _turn_to_write(self) -> AsyncGenerator[None]:
        """Wait for the earlier transactions of this process. Raises TimeoutError."""
        async with asyncio.timeout(self._busy_timeout_s):
            await self._writers.acquire()
        try:
            yield
        finally:
            self._writers.release()

    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT that supports ON CONFLICT, in the syntax of both databases."""
        return sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)

    def upsert(
        self,
        table: sa.Table,
        *,
        newer_by: sa.Column[Any] | None = None,
        keep: Collection[sa.Column[Any]] = (),
    ) -> sqlite.Insert | postgresql.Insert:
        """Return an INSERT that replaces the row with the same primary key.

        The columns in `keep` are not changed. With `newer_by`, a row is replaced only if its value
        in this column is lower than the new value.
        """
        statement = self.insert(table)
        kept = {c.name for c in (*table.primary_key, *keep)}
        rest = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in kept}
        newer = None if newer_by is None else newer_by < statement.excluded[newer_by.name]
        keys = list(table.primary_key)
        return statement.on_conflict_do_update(index_elements=keys, set_=rest, where=newer)

    async def time_s(self) -> float:
        """Return the current Unix time by the database's clock."""
        return float((await self.fetch(sa.select(self.clock_s)))[0][0])

    @property
    def clock_s(self) -> sa.ColumnElement[float]:
        """The current Unix time by the clock of the database, because clocks of processes may
        differ.
        """
        return _CLOCKS_S[self._engine.dialect.name]


async def _require_current(connection: AsyncConnection) -> None:

    def has_tables(connection: sa.Connection) -> bool:
        return sa.inspect(connection).has_table(OFFSETS.name)

    if await connection.run_sync(has_tables):
        mark = sa.select(OFFSETS.c.seq).where(OFFSETS.c.name == DATA_FORMAT)
        if (await connection.execute(mark)).first() is None:
            raise OlderData


def _require_storable(
    _connection: object,
    _cursor: object,
    _statement: str,
    parameters: Any,
    _context: object,
    executemany: bool,
) -> None:
    """Raise TextNotStorable for a text that one of the databases cannot store.

    Postgres cannot store NUL, and UTF-8 cannot encode half of a surrogate pair.
    """
    for row in parameters if executemany else [parameters]:
        for value in row.values() if isinstance(row, Mapping) else row:
            if isinstance(value, str) and not _is_storable(value):
                raise TextNotStorable


def _is_storable(text: str) -> bool:
    if "\0" in text:
        return False
    return text.isascii() or not _SURROGATE.search(text)


def rebuilt_index(name: str, taken: Collection[str]) -> str:
    """Return a free name for an index of a new table that will replace an existing table.

    The new table is renamed later, but its indexes keep their names, because SQLite cannot rename
    indexes.
    """
    return next(other for other in _rebuilt(name) if other not in taken)


def _rebuilt(name: str) -> tuple[str, str]:
    return f"{name}_r1", f"{name}_r2"


def _make_durable(connection: Any, _record: object) -> None:
    """Set SQLite to sync at each commit.

    In WAL mode with synchronous=NORMAL, a power failure may lose the last commits. The log can
    restore jobs, but not the revocation of a key. Events are written in batches, so FULL costs
    little.
    """
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
