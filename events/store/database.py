"""The database: its connections and transactions.

SQLite (`sqlite+aiosqlite`) or Postgres (`postgresql+asyncpg`), by SQLAlchemy Core.
"""

from __future__ import annotations

import re
import sqlite3
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
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from events.errors import DatabaseUnavailable, RowRefused, TextNotStorable
from events.retry import keep_trying, pause
from events.store.point_reads import PointReads
from events.store.tables import CHECKPOINTS, METADATA, RESULTS_CHECKPOINT

_CLOCKS_S = {
    "sqlite": sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double),
    "postgresql": sa.literal_column("extract(epoch FROM clock_timestamp())::float8", sa.Double),
}

_SURROGATE = re.compile("[\ud800-\udfff]")

# any numbers that no other application locks in this database
_PREPARE_LOCK = 0x6461726B
ENDPOINTS_LOCK = 0x6461726C
"""Held by whoever counts endpoints before it writes one."""


@contextmanager
def _reached() -> Generator[None]:
    """Turn the drivers' errors of a database that is not available into DatabaseUnavailable."""
    try:
        yield
    except (DBAPIError, PoolExhausted, OSError, sqlite3.Error) as error:
        if _is_about_a_row(error):
            raise RowRefused(f"The database refused a row: {type(error).__name__}.") from None
        raise DatabaseUnavailable from error


def _is_about_a_row(error: Exception) -> bool:
    """SQLAlchemy has no DataError for asyncpg; class 22 of the SQL states is "data exception"."""
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    return isinstance(error, DataError | IntegrityError) or str(state).startswith("22")


class Database:
    """Connections to one database, opened when first used.

    Every method raises DatabaseUnavailable if the database cannot be reached, is locked or full,
    or is not prepared yet.
    """

    def __init__(self, url: str, *, connections: int = 10, busy_timeout_s: float = 10.0) -> None:
        """`connections`: how many there are at most.

        `busy_timeout_s`: how long a statement may wait for one of them, for another writer, or for
        the server.
        """
        self._busy_timeout_s = busy_timeout_s
        place = sa.make_url(url)
        self._is_sqlite = place.get_backend_name() == "sqlite"
        # isolation_level None: the driver opens no transaction of its own, `write` does.
        driver = (
            {"isolation_level": None} if self._is_sqlite else {"command_timeout": busy_timeout_s}
        )
        self._engine = create_async_engine(
            url,
            connect_args={"timeout": busy_timeout_s, **driver},
            pool_size=connections,
            max_overflow=0,
            pool_timeout=busy_timeout_s,
            hide_parameters=True,  # errors are logged; prompts are not
            pool_pre_ping=not self._is_sqlite,  # a server that restarted costs no request
        )
        sa.event.listen(self._engine.sync_engine, "before_cursor_execute", _require_storable)
        if self._is_sqlite:
            sa.event.listen(self._engine.sync_engine, "connect", _make_durable)
        self._point_reads: PointReads | None = None
        if self._is_sqlite and place.database is not None:
            self._point_reads = PointReads(place.database, busy_timeout_s=busy_timeout_s)

    async def prepare(self) -> None:
        """Create what is missing. Safe while another process does the same."""
        if self._is_sqlite:
            await self._write_ahead()
        async with self.write(lock=_PREPARE_LOCK) as connection:
            await connection.run_sync(METADATA.create_all)
            await connection.run_sync(_add_missing)
            checkpoint = self.insert(CHECKPOINTS).values(name=RESULTS_CHECKPOINT, seq=0)
            await connection.execute(checkpoint.on_conflict_do_nothing())

    async def _write_ahead(self) -> None:
        """Set SQLite's journal mode, which locks the file and fails at once if it is in use."""
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

    async def prepare_persistently(self) -> None:
        """`prepare`, again until the database answers: a role may start before its database."""
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
        """A function that reads a column of the row that has a key, None where there is none.

        It returns what the database stores, so the column's type must be one that needs no
        conversion. For reads that requests wait for: on SQLite it costs a tenth of `fetch`.
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
        """Run one statement that writes; the number of rows that it changed."""
        async with self.write() as connection:
            return (await connection.execute(statement)).rowcount

    @asynccontextmanager
    async def write(self, *, lock: int | None = None) -> AsyncGenerator[AsyncConnection]:
        """One transaction, kept if the block ends well.

        `lock`: no other transaction that has it, too, runs beside this one. On SQLite no other one
        does in any case.
        """
        with _reached():
            async with self._engine.begin() as connection:
                if self._is_sqlite:
                    # A transaction that reads before it writes cannot wait for another writer: it
                    # fails with "database is locked". One that says so at its start waits its turn.
                    await connection.exec_driver_sql("BEGIN IMMEDIATE")
                elif lock is not None:
                    await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({lock})")
                yield connection

    async def copy_to(self, path: Path) -> None:
        """Write all of a SQLite database, as it is at one moment, to a new file; nobody waits."""
        with _reached():
            async with self._engine.connect() as connection:
                await connection.exec_driver_sql("VACUUM INTO ?", (str(path),))

    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that knows ON CONFLICT, which both databases spell alike."""
        return sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)

    def upsert(
        self,
        table: sa.Table,
        *,
        newer_by: sa.Column[Any] | None = None,
        keep: Collection[sa.Column[Any]] = (),
    ) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that replaces the row of the same primary key, but for the columns to `keep`.

        With `newer_by`, only if the row there has a lower value in that column.
        """
        statement = self.insert(table)
        kept = {c.name for c in (*table.primary_key, *keep)}
        rest = {c.name: statement.excluded[c.name] for c in table.columns if c.name not in kept}
        newer = None if newer_by is None else newer_by < statement.excluded[newer_by.name]
        keys = list(table.primary_key)
        return statement.on_conflict_do_update(index_elements=keys, set_=rest, where=newer)

    async def time_s(self) -> float:
        """The Unix time by that clock."""
        return float((await self.fetch(sa.select(self.clock_s)))[0][0])

    @property
    def clock_s(self) -> sa.ColumnElement[float]:
        """The database's own clock as Unix time, because holders' clocks may differ."""
        return _CLOCKS_S[self._engine.dialect.name]


def _require_storable(
    _connection: object,
    _cursor: object,
    _statement: str,
    parameters: Any,
    _context: object,
    executemany: bool,
) -> None:
    """The one place that every text passes on its way to either database.

    Postgres stores no NUL and UTF-8 has no half of a surrogate pair. Raises TextNotStorable.
    """
    for row in parameters if executemany else [parameters]:
        for value in row.values() if isinstance(row, Mapping) else row:
            if isinstance(value, str) and not _is_storable(value):
                raise TextNotStorable


def _is_storable(text: str) -> bool:
    if "\0" in text:
        return False
    return text.isascii() or not _SURROGATE.search(text)


def _add_missing(connection: sa.Connection) -> None:
    """Columns and indexes that tables of an older version lack. Such a column must be nullable:
    the rows that are there have nothing to put into it.
    """
    inspector = sa.inspect(connection)
    quote = connection.dialect.identifier_preparer.format_table
    for table in METADATA.sorted_tables:
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in columns:
                definition = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {quote(table)} ADD COLUMN {definition}")
        indexes = {str(index["name"]) for index in inspector.get_indexes(table.name)}
        for index in table.indexes:
            if not {str(index.name), *_rebuilt(str(index.name))} & indexes:
                index.create(connection)


def rebuilt_index(name: str, taken: Collection[str]) -> str:
    """The name of the index of a table that is built beside the one in use.

    The table takes the name of the other one later. An index keeps its own: SQLite renames none.
    """
    return next(other for other in _rebuilt(name) if other not in taken)


def _rebuilt(name: str) -> tuple[str, str]:
    return f"{name}_r1", f"{name}_r2"


def _make_durable(connection: Any, _record: object) -> None:
    """In WAL mode NORMAL may lose the last commits at a power cut. The log gives jobs back, but
    not the revocation of a key; and as events come in batches, FULL costs few syncs.
    """
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
