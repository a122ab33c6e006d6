"""The read model built anew beside the one in use, and put in its place.

| step     | is                                                                              |
|----------|---------------------------------------------------------------------------------|
| `begin`  | empty tables of other names; what a rebuild that died has left is dropped       |
| `put`    | rows of jobs, in any order, as often as you like: the newest version stays      |
| `swap`   | in one transaction: what was written to the old rows alone is taken over, the   |
|          | segments that were found are whole, the checkpoint moves, the tables change     |
|          | their names                                                                     |
| `finish` | clean-ups of erased jobs that the old tables did not know; they are dropped     |

Until the swap nobody sees any of it. A process that dies at any step leaves a read model that is
whole: the old one before the swap, the new one from then on.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.log import utc_now
from events.store.archiving.hot_jobs import archived_bytes
from events.store.archiving.segments import SegmentState
from events.store.batch import Batch
from events.store.checkpoint import add_checkpoints, replace_checkpoints
from events.store.database import Database, rebuilt_index
from events.store.job_rows import ERASED, job_row
from events.store.tables import (
    BLOCKED_JOBS,
    ERASURES,
    IMAGES,
    JOBS,
    SEGMENTS,
)
from events.streams.log_streams import ONE_STREAM, LogPlace, LogStreams
from events.types import Event

_PAGE = 500
_OLD = {table.name: f"{table.name}_replaced" for table in (JOBS, IMAGES, BLOCKED_JOBS)}


def _beside(table: sa.Table, name: str, indexes: Mapping[str, str] | None = None) -> sa.Table:
    """The same table under another name, its indexes under the names of `indexes`, or without."""
    beside = table.to_metadata(sa.MetaData(), name=name)
    for index in list(beside.indexes):
        if indexes is None:
            beside.indexes.discard(index)
        else:
            index.name = sa.quoted_name(indexes[str(index.name)], quote=None)
    return beside


_NEW_JOBS = _beside(JOBS, "jobs_rebuilt")
_NEW_IMAGES = _beside(IMAGES, "images_rebuilt")
_NEW_STOPS = _beside(BLOCKED_JOBS, "blocked_jobs_rebuilt")
_OLD_JOBS = _beside(JOBS, _OLD["jobs"])
_NEW = {JOBS: _NEW_JOBS, IMAGES: _NEW_IMAGES, BLOCKED_JOBS: _NEW_STOPS}


class Rebuild:
    """Every method raises DatabaseUnavailable."""

    def __init__(
        self,
        database: Database,
        *,
        streams: LogStreams = ONE_STREAM,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`streams`: what the log is."""
        self._database = database
        self._streams = streams
        self._now = now

    async def begin(self) -> None:
        async with self._database.write() as connection:
            await connection.run_sync(_make_tables)

    async def put(
        self,
        events: Sequence[Event],
        *,
        segment: str | None = None,
        archived_at: datetime | None = None,
    ) -> None:
        """Write the rows of some jobs from all the events of each, as the projection would.

        `segment`: the one that has them; None: they are in the log.
        """
        batch = Batch({}, {}, now=self._now())
        for event in events:
            batch.add(event)
        rows = [
            job_row(job)
            | {
                "segment": segment,
                "archived_at": archived_at,
                "hot_since": self._now() if segment is None and job.ended_at else None,
            }
            for job in batch.jobs
        ]
        if segment is not None:
            rows = [_settled_in_archive(row) for row in rows]
        async with self._database.write() as connection:
            upsert = self._database.upsert(_NEW_JOBS, newer_by=_NEW_JOBS.c.version)
            await _execute(connection, upsert, rows)
            if segment is not None:  # the log has the same version of some, and nothing said where
                mine = _NEW_JOBS.c.id.in_([job.id for job in batch.jobs])
                unplaced = sa.update(_NEW_JOBS).where(mine, _NEW_JOBS.c.segment.is_(None))
                await connection.execute(unplaced.values(segment=segment))
            insert = self._database.insert(_NEW_IMAGES).on_conflict_do_nothing()
            await _execute(connection, insert, batch.image_rows(events))
            await _delete_images(connection, [job.id for job in batch.jobs if job.erased])
            read_again = _NEW_STOPS.c.job_id.in_({event.job_id for event in events})
            await connection.execute(sa.delete(_NEW_STOPS).where(read_again))
            stops = [asdict(stop) for stop in batch.stops]
            await _execute(connection, sa.insert(_NEW_STOPS), stops)

    async def segments_of(self, job_ids: Collection[str]) -> set[str]:
        """The segments that rows of these jobs name already."""
        mine = (_NEW_JOBS.c.id.in_(job_ids), _NEW_JOBS.c.segment.is_not(None))
        rows = await self._database.fetch(sa.select(_NEW_JOBS.c.segment).where(*mine).distinct())
        return {row.segment for row in rows}

    async def heat(self, job_ids: Collection[str], since: datetime) -> None:
        """Say of those of these jobs that are archived that the log has something, too."""
        mine = (_NEW_JOBS.c.id.in_(job_ids), _NEW_JOBS.c.segment.is_not(None))
        hot = {"archived_at": None, "hot_since": since, "settled_at": None}
        await self._database.execute(sa.update(_NEW_JOBS).where(*mine).values(hot))

    async def swap(self, place: LogPlace, *, log_end: LogPlace) -> bool:
        """Put the new tables in the place of the old ones, which are projected up to `place`.

        False, and nothing was done, if the old ones are further by now. Those that are further than
        the log itself, which ends at `log_end`, know what nobody else knows, and go.
        """
        await add_checkpoints(self._database, self._streams)
        async with self._database.write() as connection:
            if not await replace_checkpoints(
                connection, self._streams, place=place, log_end=log_end
            ):
                return False
            if connection.dialect.name == "postgresql":
                names = ", ".join(_OLD)
                await connection.execute(sa.text(f"LOCK TABLE {names} IN ACCESS EXCLUSIVE MODE"))
            await _take_over_archival(connection)
            await _take_over_erasures(connection)
            found = sa.update(SEGMENTS).where(SEGMENTS.c.state == SegmentState.FOUND)
            await connection.execute(found.values(state=SegmentState.WHOLE))
            for table, new in _NEW.items():
                await _rename(connection, table.name, _OLD[table.name])
                await _rename(connection, new.name, table.name)
        return True

    async def surplus(self) -> AsyncGenerator[list[str]]:
        """Jobs that the replaced tables did not have, some at a time, after the swap."""
        query = sa.select(JOBS.c.id).order_by(JOBS.c.id).limit(_PAGE)
        query = query.where(JOBS.c.id.not_in(sa.select(_OLD_JOBS.c.id)))
        last = ""
        while rows := await self._database.fetch(query.where(JOBS.c.id > last)):
            last = rows[-1].id
            yield [row.id for row in rows]

    async def remove(self, job_ids: Collection[str]) -> None:
        """Delete the rows of these jobs, after the swap."""
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
        _beside(table, new.name, names).create(connection)


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


def _settled_in_archive(row: dict[str, Any]) -> dict[str, Any]:
    """Its bytes count in the image store, as `archived_bytes` has it, and nothing is left to do."""
    result_bytes = row["result_bytes"] + row["log_bytes"]
    return row | {"log_bytes": 0, "result_bytes": result_bytes, "settled_at": row["ended_at"]}


async def _take_over_archival(connection: AsyncConnection) -> None:
    """What the archive says of jobs meanwhile: it changes rows, and stores no event.

    Of jobs that have something in the log, in either table: these are few, and have an index.
    """
    new, old = _NEW_JOBS, JOBS
    hot = sa.union(*(sa.select(each.c.id).where(*_is_hot(each)) for each in (new, old)))
    is_archived = old.c.archived_at.is_not(None) & old.c.segment.in_(sa.select(SEGMENTS.c.id))
    is_heated = old.c.archived_at.is_(None) & (old.c.segment.is_not(None) | new.c.segment.is_(None))
    change = (
        sa.update(new)
        .where(new.c.id == old.c.id, new.c.version == old.c.version)
        .where(new.c.id.in_(sa.select(hot.subquery().c.id)), is_archived | is_heated)
        .values(
            segment=sa.func.coalesce(new.c.segment, old.c.segment),
            archived_at=old.c.archived_at,
            hot_since=old.c.hot_since,
            **{
                name: sa.case((old.c.archived_at.is_(None), new.c[name]), else_=archived)
                for name, archived in archived_bytes(new).items()
            },
        )
    )
    await connection.execute(change)


def _is_hot(jobs: sa.Table) -> tuple[sa.ColumnElement[bool], sa.ColumnElement[bool]]:
    return jobs.c.archived_at.is_(None), jobs.c.ended_at.is_not(None)


async def _take_over_erasures(connection: AsyncConnection) -> None:
    """Rows of jobs that were erased meanwhile: they are blanked before that is projected."""
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
