"""Builds the tables of a new read model, and replaces the present tables.

| step     | action                                                                          |
|----------|---------------------------------------------------------------------------------|
| `begin`  | drops tables of an interrupted rebuild; creates empty tables with other names   |
| `put`    | writes rows of jobs, in any order and repeatedly: the newest version stays      |
| `swap`   | in one transaction: copies later changes of the old rows, moves the offset, and |
|          | renames the tables                                                              |
| `finish` | adds clean-ups of erased jobs that the old tables lacked; drops the old tables  |

The new tables are not used before the swap. So a complete read model remains if the process dies:
the old tables before the swap, or the new tables after the swap.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.job import Job
from events.log import utc_now
from events.store.database import Database, rebuilt_index
from events.store.ended_jobs import moved_bytes
from events.store.read_model import ERASED, RowChanges, image_rows, job_row, replace_offset
from events.store.tables import (
    BLOCKED_JOBS,
    ERASURES,
    IMAGES,
    JOBS,
)
from events.types import Event
from storage.file_names import HistoryName

_AT_ONCE = 500
"""The number of ids in one statement."""
_OLD = {table.name: f"{table.name}_replaced" for table in (JOBS, IMAGES, BLOCKED_JOBS)}


def _renamed_copy(table: sa.Table, name: str, indexes: Mapping[str, str] | None = None) -> sa.Table:
    """Return a copy of the table with another name.

    `indexes` has the new names of the indexes by their present names. Without it, the copy has no
    indexes.
    """
    beside = table.to_metadata(sa.MetaData(), name=name)
    for index in list(beside.indexes):
        if indexes is None:
            beside.indexes.discard(index)
        else:
            index.name = sa.quoted_name(indexes[str(index.name)], quote=None)
    return beside


_NEW_JOBS = _renamed_copy(JOBS, "jobs_rebuilt")
_NEW_IMAGES = _renamed_copy(IMAGES, "images_rebuilt")
_NEW_BLOCKED = _renamed_copy(BLOCKED_JOBS, "blocked_jobs_rebuilt")
_OLD_JOBS = _renamed_copy(JOBS, _OLD["jobs"])
_NEW = {JOBS: _NEW_JOBS, IMAGES: _NEW_IMAGES, BLOCKED_JOBS: _NEW_BLOCKED}


@dataclass(frozen=True, slots=True)
class HistoryState:
    """The history object of a job, and whether the log still has events."""

    key: str
    has_events_in_log: bool
    is_hot: bool
    """Whether the log has events of the job or of its delivery."""


class Rebuild:
    """The steps of a rebuild. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database, *, now: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._now = now

    async def begin(self) -> None:
        async with self._database.write() as connection:
            await connection.run_sync(_make_tables)

    async def put(
        self,
        events: Sequence[Event],
        *,
        histories: Mapping[str, HistoryState] = MappingProxyType({}),
    ) -> None:
        """Write the rows of some jobs from all their events, as the projection does.

        `histories` are the history objects of these jobs, by job id.
        """
        batch = RowChanges({}, {}, now=self._now())
        for event in events:
            batch.add(event)
        rows = [_row(job, histories.get(job.id), now=self._now()) for job in batch.jobs]
        async with self._database.write() as connection:
            upsert = self._database.upsert(_NEW_JOBS, newer_by=_NEW_JOBS.c.version)
            await _execute(connection, upsert, rows)
            # The table may already have a row of the same version that was written from the log,
            # without the key of the history object.
            named = [
                {"job": row["id"], "its_version": row["version"], "key": row["history"]}
                for row in rows
                if row["history"] is not None
            ]
            same = (
                _NEW_JOBS.c.id == sa.bindparam("job"),
                _NEW_JOBS.c.version == sa.bindparam("its_version"),
            )
            if named:
                name = sa.update(_NEW_JOBS).where(*same).values(history=sa.bindparam("key"))
                await connection.execute(name, named)
            insert = self._database.insert(_NEW_IMAGES).on_conflict_do_nothing()
            await _execute(connection, insert, image_rows(events, batch.jobs))
            await _delete_images(connection, [job.id for job in batch.jobs if job.erased])
            read_again = _NEW_BLOCKED.c.job_id.in_({event.job_id for event in events})
            await connection.execute(sa.delete(_NEW_BLOCKED).where(read_again))
            blocked = [asdict(each) for each in batch.blocked]
            await _execute(connection, sa.insert(_NEW_BLOCKED), blocked)

    async def histories(self, job_ids: Collection[str]) -> dict[str, str]:
        """Return the keys of the history objects in the new rows of these jobs, by job id."""
        mine = (_NEW_JOBS.c.id.in_(job_ids), _NEW_JOBS.c.history.is_not(None))
        rows = await self._database.fetch(
            sa.select(_NEW_JOBS.c.id, _NEW_JOBS.c.history).where(*mine)
        )
        return {row.id: row.history for row in rows}

    async def swap(self, offset: int, *, since: int, log_end: int) -> bool:
        """Replace the old tables by the new tables, which are projected up to `offset`.

        `since` is the end of the log at the beginning of the rebuild. Later events of a job may
        have left the log before the rebuild read them. Only the old tables have such a job, so its
        row is copied.

        Return False and change nothing if the offset of the old tables is higher than `offset`. If
        the offset of the old tables is beyond the end of the log, `log_end`, the old tables are
        replaced, although they may have jobs that exist nowhere else.
        """
        async with self._database.write() as connection:
            if not await replace_offset(connection, offset=offset, log_end=log_end):
                return False
            if connection.dialect.name == "postgresql":
                names = ", ".join(_OLD)
                await connection.execute(sa.text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
            await _copy_histories(connection, since=since)
            await _copy_erasures(connection)
            for table, new in _NEW.items():
                await _rename(connection, table.name, _OLD[table.name])
                await _rename(connection, new.name, table.name)
        return True

    async def surplus(self) -> AsyncGenerator[list[str]]:
        """Yield, after the swap, the jobs without history objects that only the new tables have."""
        query = sa.select(JOBS.c.id).order_by(JOBS.c.id).limit(_AT_ONCE)
        known = sa.select(_OLD_JOBS.c.id)
        query = query.where(JOBS.c.history.is_(None), JOBS.c.id.not_in(known))
        last = ""
        while rows := await self._database.fetch(query.where(JOBS.c.id > last)):
            last = rows[-1].id
            yield [row.id for row in rows]

    async def remove(self, job_ids: Collection[str]) -> None:
        """Delete the rows of these jobs. Call this after the swap."""
        async with self._database.write() as connection:
            for column in (IMAGES.c.job_id, JOBS.c.id):
                await connection.execute(sa.delete(column.table).where(column.in_(job_ids)))

    async def finish(self) -> None:
        known = sa.select(_OLD_JOBS.c.id).where(_OLD_JOBS.c.status == ERASED)
        new = sa.select(JOBS.c.id, JOBS.c.ended_at, JOBS.c.ended_at).where(
            JOBS.c.status == ERASED, JOBS.c.id.not_in(known)
        )
        columns = ["job_id", "erased_at", "due_at"]
        insert = self._database.insert(ERASURES).from_select(columns, new)
        async with self._database.write() as connection:
            await connection.execute(insert.on_conflict_do_nothing())
            await connection.run_sync(_drop_leftovers)


def _make_tables(connection: sa.Connection) -> None:
    _drop_leftovers(connection)
    inspector = sa.inspect(connection)
    for table, new in _NEW.items():
        there = {str(index["name"]) for index in inspector.get_indexes(table.name)}
        names = {str(index.name): rebuilt_index(str(index.name), there) for index in table.indexes}
        _renamed_copy(table, new.name, names).create(connection)


def _drop_leftovers(connection: sa.Connection) -> None:
    there = set(sa.inspect(connection).get_table_names())
    for name in {*_OLD.values(), *(new.name for new in _NEW.values())} & there:
        sa.Table(name, sa.MetaData()).drop(connection)


async def _execute(
    connection: AsyncConnection, statement: sa.Insert, rows: Sequence[Mapping[str, Any]]
) -> None:
    if rows:
        await connection.execute(statement, rows)


async def _delete_images(connection: AsyncConnection, job_ids: Sequence[str]) -> None:
    if job_ids:
        mine = _NEW_IMAGES.c.job_id.in_(job_ids)
        await connection.execute(sa.delete(_NEW_IMAGES).where(mine))


def _row(job: Job, found: HistoryState | None, *, now: datetime) -> dict[str, Any]:
    own_erasure = HistoryName(job.id, job.version, 0).key
    if found is not None and job.erased and found.key != own_erasure:
        found = None  # The object is older than the erasure and will be removed.
    row = job_row(job)
    is_hot = found is None or found.is_hot
    row["history"] = None if found is None else found.key
    row["hot_since"] = now if is_hot and job.ended_at is not None else None
    if not is_hot:
        row["settled_at"] = job.ended_at
    if found is not None and not found.has_events_in_log:  # `moved_bytes` explains this sum.
        row["result_bytes"] += row["log_bytes"]
        row["log_bytes"] = 0
    return row


async def _copy_histories(connection: AsyncConnection, *, since: int) -> None:
    """Copy the changes that the historian made in the old rows during the rebuild.

    The historian stores no events, so the new rows do not have these changes.
    """
    new, old = _NEW_JOBS, JOBS
    is_cold = old.c.hot_since.is_(None)
    change = (
        sa.update(new)
        .where(new.c.id == old.c.id, new.c.version == old.c.version, old.c.history.is_not(None))
        .where(
            new.c.history.is_distinct_from(old.c.history) | (new.c.hot_since.is_(None) != is_cold)
        )
        .values(
            history=old.c.history,
            hot_since=old.c.hot_since,
            settled_at=old.c.settled_at,
            **{
                name: sa.case((is_cold, moved), else_=new.c[name])
                for name, moved in moved_bytes(new).items()
            },
        )
    )
    await connection.execute(change)
    unread = old.c.history.is_not(None) & (old.c.position > since)
    missing = sa.select(old.c.id).where(unread, old.c.id.not_in(sa.select(new.c.id)))
    ids = (await connection.execute(missing)).scalars().all()
    for table, beside, job_id in ((old, new, old.c.id), (IMAGES, _NEW_IMAGES, IMAGES.c.job_id)):
        for start in range(0, len(ids), _AT_ONCE):
            rows = sa.select(table).where(job_id.in_(ids[start : start + _AT_ONCE]))
            columns = [column.name for column in table.columns]
            await connection.execute(sa.insert(beside).from_select(columns, rows))


async def _copy_erasures(connection: AsyncConnection) -> None:
    """Copy the rows of jobs that were erased during the rebuild.

    An API process writes the row of an erased job before the projection folds the `Erased` event,
    so the new row may lack the erasure.
    """
    new, old = _NEW_JOBS, JOBS
    same = sa.select(new.c.id).where(new.c.id == old.c.id, new.c.version >= old.c.version)
    erased = sa.select(old).where(old.c.status == ERASED, ~same.exists())
    ids = (await connection.execute(erased.with_only_columns(old.c.id))).scalars().all()
    if not ids:
        return
    await connection.execute(sa.delete(new).where(new.c.id.in_(ids)))
    await _delete_images(connection, ids)
    columns = [column.name for column in old.columns]
    await connection.execute(sa.insert(new).from_select(columns, erased.where(old.c.id.in_(ids))))


async def _rename(connection: AsyncConnection, name: str, to: str) -> None:
    await connection.execute(sa.text(f"ALTER TABLE {name} RENAME TO {to}"))
