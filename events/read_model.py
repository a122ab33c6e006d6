"""The SQL side of the service: read models folded from the log, API keys, endpoints, leases.

SQLite (`sqlite+aiosqlite`) or Postgres (`postgresql+asyncpg`), by SQLAlchemy Core. Rows of `jobs`
and `images` can be rebuilt from the log; those of `api_keys` and `endpoints` cannot.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolExhausted
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from events.errors import DatabaseUnavailable
from events.job import Job, fold
from events.records import ApiKey, Endpoint, Scope
from events.result import Status, status_of
from events.types import End, Event, Flavour, ImageStored

logger = logging.getLogger(__name__)


class UtcDateTime(sa.TypeDecorator[datetime]):
    """Aware and in UTC on both databases; SQLite itself keeps no time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _: sa.Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("A time without a zone cannot be stored; give it UTC.")
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _: sa.Dialect) -> datetime | None:
        return value and (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC))


_METADATA = sa.MetaData()


def _table(name: str, *parts: sa.Column[Any] | sa.Index) -> sa.Table:
    return sa.Table(name, _METADATA, *parts)


def _key(name: str, kind: Any = sa.String) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True)


def _required(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False)


_CHECKPOINTS = _table("checkpoints", _key("name"), _required("seq", sa.BigInteger))

_JOBS = _table(
    "jobs",
    _key("id"),
    _required("owner", sa.String),
    _required("flavour", sa.String),
    _required("endpoint", sa.String),
    _required("status", sa.SmallInteger),
    _required("created_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    _required("version", sa.BigInteger),
    _required("position", sa.BigInteger),
    _required("state", sa.Text),
    sa.Index("jobs_by_owner", "owner", "created_at", "id"),
    sa.Index("jobs_by_status", "status", "created_at", "id"),
)

_IMAGES = _table(
    "images",
    _key("job_id"),
    _key("index", sa.Integer),
    _required("storage_key", sa.String),
    _required("size_bytes", sa.BigInteger),
    _required("digest", sa.String),
    _required("position", sa.BigInteger),
)

_API_KEYS = _table(
    "api_keys",
    _key("id"),
    _required("owner", sa.String),
    _required("name", sa.String),
    _required("secret_sha256", sa.String),
    _required("scopes", sa.String),
    _required("created_at", UtcDateTime),
    sa.Column("expires_at", UtcDateTime),
    sa.Column("revoked_at", UtcDateTime),
)

_ENDPOINTS = _table(
    "endpoints",
    _key("id"),
    sa.Column("checkpoint", sa.String),
    sa.Column("gpus", sa.Double),
    _required("cpus", sa.Double),
    _required("min_workers", sa.Integer),
    _required("max_workers", sa.Integer),
    _required("jobs_per_worker", sa.Integer),
    _required("max_queued", sa.BigInteger),
    _required("max_pixels", sa.BigInteger),
    _required("max_steps", sa.Integer),
)

_LEASES = _table(
    "leases", _key("name"), _required("holder", sa.String), _required("expires_at_s", sa.Double)
)

_CLOCKS_S = {
    "sqlite": sa.literal_column("(julianday('now') - 2440587.5) * 86400.0", sa.Double),
    "postgresql": sa.literal_column("extract(epoch FROM clock_timestamp())::float8", sa.Double),
}

_PREPARE_LOCK = 0x6461726B  # any number that no other application locks in this database

_CHECKPOINT = "results"


@contextmanager
def _reached() -> Generator[None]:
    """Every way in which the drivers say that the database is away becomes DatabaseUnavailable."""
    try:
        yield
    except (DBAPIError, PoolExhausted, OSError) as error:
        if _is_about_a_row(error):
            raise
        raise DatabaseUnavailable from error


def _is_about_a_row(error: Exception) -> bool:
    """SQLAlchemy has no DataError for asyncpg; class 22 of the SQL states is "data exception"."""
    state = getattr(error.orig, "sqlstate", None) if isinstance(error, DBAPIError) else None
    return isinstance(error, DataError | IntegrityError) or str(state).startswith("22")


class Database:
    """Connections to one database, opened when first used.

    Everything that uses it raises DatabaseUnavailable where it is away, locked, full
    or not prepared yet.
    """

    def __init__(self, url: str, *, busy_timeout_s: float = 10.0) -> None:
        """`busy_timeout_s`: how long a statement may wait for another writer, or for the server."""
        self._is_sqlite = sa.make_url(url).get_backend_name() == "sqlite"
        # isolation_level None: the driver opens no transaction of its own, `write` does.
        driver = (
            {"isolation_level": None} if self._is_sqlite else {"command_timeout": busy_timeout_s}
        )
        self._engine = create_async_engine(
            url,
            connect_args={"timeout": busy_timeout_s, **driver},
            pool_timeout=busy_timeout_s,
            hide_parameters=True,  # errors are logged; prompts are not
            pool_pre_ping=not self._is_sqlite,  # a server that restarted costs no request
        )
        if self._is_sqlite:
            sa.event.listen(self._engine.sync_engine, "connect", _make_durable)

    async def prepare(self) -> None:
        """Create what is missing. Safe while another process does the same."""
        if self._is_sqlite:
            with _reached():
                async with self._engine.connect() as connection:
                    await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        async with self.write() as connection:
            if not self._is_sqlite:
                await connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_PREPARE_LOCK})")
            await connection.run_sync(_METADATA.create_all)
            checkpoint = self.insert(_CHECKPOINTS).values(name=_CHECKPOINT, seq=0)
            await connection.execute(checkpoint.on_conflict_do_nothing())

    async def prepare_persistently(self) -> None:
        """`prepare`, again until the database is there: a role must not end because it is late."""
        while True:
            try:
                return await self.prepare()
            except DatabaseUnavailable as error:
                fields = {"action": "prepare_database", "error": str(error.__cause__)}
                logger.warning("database away", extra=fields)
                await asyncio.sleep(random.uniform(0.5, 1.0))

    async def close(self) -> None:
        await self._engine.dispose()

    async def fetch(self, query: sa.Select[*tuple[Any, ...]]) -> Sequence[sa.Row[*tuple[Any, ...]]]:
        with _reached():
            async with self._engine.connect() as connection:
                return (await connection.execute(query)).all()

    async def execute(self, statement: sa.UpdateBase) -> int:
        """Run one statement that writes; the number of rows that it changed."""
        async with self.write() as connection:
            return (await connection.execute(statement)).rowcount

    @asynccontextmanager
    async def write(self) -> AsyncGenerator[AsyncConnection]:
        """One transaction, kept if the block ends well."""
        with _reached():
            async with self._engine.begin() as connection:
                if self._is_sqlite:
                    # A transaction that reads before it writes cannot wait for another writer: it
                    # fails with "database is locked". One that says so at its start waits its turn.
                    await connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection

    def insert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that knows ON CONFLICT, which both databases spell alike."""
        return sqlite.insert(table) if self._is_sqlite else postgresql.insert(table)

    def upsert(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that replaces the row of the same primary key."""
        statement = self.insert(table)
        rest = {c.name: statement.excluded[c.name] for c in table.columns if not c.primary_key}
        return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=rest)

    @property
    def clock_s(self) -> sa.ColumnElement[float]:
        """The database's own clock as Unix time: holders of a lease need not agree on theirs."""
        return _CLOCKS_S[self._engine.dialect.name]


def _make_durable(connection: Any, _record: object) -> None:
    """In WAL mode NORMAL may lose the last commits at a power cut. The log gives jobs back, but
    not the revocation of a key; and as events come in batches, FULL costs few syncs.
    """
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


class ReadModel:
    """Jobs as `Results` has folded them so far, and how far that is."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def checkpoint(self) -> int:
        """Position of the last event that the rows have seen; 0 before the first."""
        query = sa.select(_CHECKPOINTS.c.seq).where(_CHECKPOINTS.c.name == _CHECKPOINT)
        [row] = await self._database.fetch(query)
        return int(row.seq)

    async def apply(self, events: Sequence[Event], *, expected: int) -> bool:
        """Fold `events`, those that follow position `expected`, into the rows, all or nothing.

        False where the checkpoint is not `expected`: another instance is ahead, nothing was done.
        """
        if not events:
            return await self.checkpoint() == expected
        async with self._database.write() as connection:
            # First, for it locks the row: who comes second waits here and then finds it moved.
            moved = await connection.execute(
                sa.update(_CHECKPOINTS)
                .where(_CHECKPOINTS.c.name == _CHECKPOINT, _CHECKPOINTS.c.seq == expected)
                .values(seq=events[-1].position)
            )
            if moved.rowcount == 0:
                return False
            before = await _read_jobs(connection, {event.job_id for event in events})
            jobs = _fold_batch(events, before)
            if rows := [_job_row(job) for job in jobs.values() if job is not before.get(job.id)]:
                await connection.execute(self._database.upsert(_JOBS), rows)
            if rows := _image_rows(events, jobs):
                insert = self._database.insert(_IMAGES).on_conflict_do_nothing()
                await connection.execute(insert, rows)
        return True

    async def open_job_ids(self) -> list[str]:
        """Jobs of every owner that have not ended, oldest first."""
        query = sa.select(_JOBS.c.id).where(_JOBS.c.status == Status.RUNNING.value)
        oldest_first = query.order_by(_JOBS.c.created_at, _JOBS.c.id)
        return [row.id for row in await self._database.fetch(oldest_first)]

    async def job(self, job_id: str) -> Job | None:
        rows = await self._database.fetch(sa.select(_JOBS.c.state).where(_JOBS.c.id == job_id))
        return _from_state(rows[0].state) if rows else None

    async def jobs(
        self,
        owner: str,
        *,
        status: Status | None = None,
        flavour: Flavour | None = None,
        endpoint: str | None = None,
        limit: int = 50,
        before: str | None = None,
    ) -> list[Job]:
        """The owner's jobs, newest first; `before`: the id of the last one already seen.

        Empty where `before` is no job of this owner.
        """
        wanted = {"owner": owner, "status": status, "flavour": flavour, "endpoint": endpoint}
        query = sa.select(_JOBS.c.state).where(
            *(_JOBS.c[name] == value for name, value in wanted.items() if value is not None)
        )
        if before is not None:
            place = sa.tuple_(_JOBS.c.created_at, _JOBS.c.id)
            seen = _JOBS.alias("seen")
            is_last = (seen.c.id == before) & (seen.c.owner == owner)
            last = sa.select(seen.c.created_at, seen.c.id).where(is_last)
            query = query.where(place < last.scalar_subquery())
        newest_first = query.order_by(_JOBS.c.created_at.desc(), _JOBS.c.id.desc())
        rows = await self._database.fetch(newest_first.limit(limit))
        return [_from_state(row.state) for row in rows]


async def _read_jobs(connection: AsyncConnection, ids: set[str]) -> dict[str, Job]:
    rows = await connection.execute(sa.select(_JOBS.c.state).where(_JOBS.c.id.in_(ids)))
    return {job.id: job for job in map(_from_state, rows.scalars())}


def _fold_batch(events: Iterable[Event], before: dict[str, Job]) -> dict[str, Job]:
    jobs = dict(before)
    for event in events:
        if (job := fold([event], jobs.get(event.job_id))) is not None:
            jobs[job.id] = job
    return jobs


def _job_row(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "owner": job.submitted.owner,
        "flavour": job.submitted.flavour.value,
        "endpoint": job.submitted.endpoint,
        "status": status_of(job.end).value,
        "created_at": job.submitted_at,
        "ended_at": job.ended_at,
        "version": job.version,
        "position": job.position,
        "state": _to_state(job),
    }


def _image_rows(events: Iterable[Event], jobs: dict[str, Job]) -> list[dict[str, Any]]:
    """Those images of the batch that their job took; a repeat meets the row that is there."""
    return [
        {
            "job_id": event.job_id,
            "index": image.index,
            "storage_key": image.key,
            "size_bytes": image.size_bytes,
            "digest": image.digest,
            "position": event.position,
        }
        for event in events
        if isinstance(image := event.fact, ImageStored)
        and (job := jobs.get(event.job_id)) is not None
        and job.image(image.index) == image
    ]


_JOB = TypeAdapter(Job)
_ENDS: dict[str, type[End]] = {end.type_name: end for end in get_args(End)}


def _to_state(job: Job) -> str:
    """`Job` as JSON, its end named beside it: `Failed` and `Cancelled` look alike in JSON."""
    end = None if job.end is None else job.end.type_name
    return json.dumps({"end": end, "job": _JOB.dump_python(job, mode="json")})


def _from_state(state: str) -> Job:
    stored = json.loads(state)
    job = _JOB.validate_python(stored["job"])
    if stored["end"] is None:
        return job
    return replace(job, end=_ENDS[stored["end"]].model_validate(stored["job"]["end"]))


class ApiKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: ApiKey) -> None:
        row = asdict(key) | {"scopes": " ".join(sorted(key.scopes))}
        await self._database.execute(self._database.insert(_API_KEYS).values(row))

    async def get(self, key_id: str) -> ApiKey | None:
        rows = await self._database.fetch(sa.select(_API_KEYS).where(_API_KEYS.c.id == key_id))
        return _api_key(rows[0]) if rows else None

    async def all(self) -> list[ApiKey]:
        """Oldest first."""
        query = sa.select(_API_KEYS).order_by(_API_KEYS.c.created_at, _API_KEYS.c.id)
        return [_api_key(row) for row in await self._database.fetch(query)]

    async def revoke(self, key_id: str, at: datetime) -> bool:
        """False where the key is unknown or revoked already; the first time stands."""
        live = (_API_KEYS.c.id == key_id) & _API_KEYS.c.revoked_at.is_(None)
        revoke = sa.update(_API_KEYS).where(live).values(revoked_at=at)
        return await self._database.execute(revoke) > 0


def _api_key(row: sa.Row[Any]) -> ApiKey:
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    return ApiKey(**{**row._mapping, "scopes": scopes})


class Endpoints:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Endpoint]:
        """By id."""
        rows = await self._database.fetch(sa.select(_ENDPOINTS).order_by(_ENDPOINTS.c.id))
        return [Endpoint(**row._mapping) for row in rows]

    async def get(self, id: str) -> Endpoint | None:
        rows = await self._database.fetch(sa.select(_ENDPOINTS).where(_ENDPOINTS.c.id == id))
        return Endpoint(**rows[0]._mapping) if rows else None

    async def put(self, endpoint: Endpoint) -> None:
        """Add it, or replace the one of its id."""
        await self._database.execute(self._database.upsert(_ENDPOINTS).values(asdict(endpoint)))

    async def add_missing(self, endpoint: Endpoint) -> None:
        """Add it unless one of its id is there. Safe while another process does the same."""
        insert = self._database.insert(_ENDPOINTS).values(asdict(endpoint))
        await self._database.execute(insert.on_conflict_do_nothing())


class Leases:
    """Who does what only one should do, for a short while. It spares work; it is no fence."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> bool:
        """Take it, or renew it, for `ttl_s` from now; False while it is another's."""
        now_s = self._database.clock_s
        row = {"name": name, "holder": holder, "expires_at_s": now_s + ttl_s}
        taken = await self._database.execute(
            self._database.insert(_LEASES)
            .values(row)
            .on_conflict_do_update(
                index_elements=[_LEASES.c.name],
                set_=row,
                where=(_LEASES.c.holder == holder) | (_LEASES.c.expires_at_s <= now_s),
            )
        )
        return taken > 0

    async def release(self, name: str, holder: str) -> None:
        """Give it up; nothing happens where it is another's."""
        mine = (_LEASES.c.name == name) & (_LEASES.c.holder == holder)
        await self._database.execute(sa.delete(_LEASES).where(mine))
