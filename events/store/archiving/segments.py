"""Which segments there are, and which one has a job.

| state     | means                                                                 |
|-----------|-----------------------------------------------------------------------|
| `writing` | its object may be there or not, and no row of a job names it          |
| `purging` | its jobs are in it; the log may have them, too                        |
| `whole`   | its jobs are in it, and what it has is no longer in the log           |
| `doomed`  | its jobs are in another one, `moved_to`; its object may be there      |
| `gone`    | the same, without an object                                           |
| `found`   | its object is there; a rebuild, which has not ended, reads its jobs   |

A job's row names the segment that it was first written to. Where that one was rewritten or merged,
its own row says to which, so no row of a job changes then.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.archive.archive import SegmentRef
from events.store.archiving.hot_jobs import HotJob, are_unchanged, mark_archived
from events.store.database import Database
from events.store.tables import JOBS, SEGMENTS


class SegmentState(StrEnum):
    WRITING = "writing"
    PURGING = "purging"
    WHOLE = "whole"
    DOOMED = "doomed"
    GONE = "gone"
    FOUND = "found"


STORED = (SegmentState.PURGING, SegmentState.WHOLE)
"""Their objects are valid."""
_UNSETTLED = (SegmentState.WRITING, SegmentState.DOOMED)
_PAGE = 500
_REF = (SEGMENTS.c.day, SEGMENTS.c.partition, SEGMENTS.c.id)


@dataclass(frozen=True, slots=True)
class Written:
    """A segment whose object is stored, and what follows from it."""

    ref: SegmentRef
    jobs: int
    size_bytes: int
    archived: Sequence[HotJob] = ()
    """Jobs whose events it takes over from the log."""
    sources: Sequence[SegmentRef] = ()
    """Segments in whose place it comes."""
    forgotten: Collection[str] = ()
    """Ids of jobs that those have, and it does not."""


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """What the row of an archived job says."""

    job_id: str
    position: int
    is_hot: bool
    """There may be something in the log, too."""


class _Changed(Exception):
    """Somebody else was faster; the transaction is rolled back."""


class Segments:
    """The table of segments. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, job_id: str) -> SegmentRef | None:
        """The segment that has events of the job now; None where none has."""
        return (await self.of_jobs([job_id])).get(job_id)

    async def of_jobs(self, job_ids: Collection[str]) -> dict[str, SegmentRef]:
        """The segments that have events of these jobs now; without those of which none has."""
        first, now = SEGMENTS.alias("first"), SEGMENTS.alias("now")
        at = sa.func.coalesce(first.c.moved_to, first.c.id)
        query = (
            sa.select(JOBS.c.id.label("job_id"), now.c.day, now.c.partition, now.c.id)
            .select_from(JOBS.join(first, first.c.id == JOBS.c.segment).join(now, now.c.id == at))
            .where(JOBS.c.id.in_(job_ids))
        )
        rows = await self._database.fetch(query)
        return {row.job_id: SegmentRef(row.day, row.partition, row.id) for row in rows}

    async def add(
        self, ref: SegmentRef, *, jobs: int, size_bytes: int, now: datetime, is_whole: bool = True
    ) -> None:
        """Add a segment that is there, as a rebuild finds it; its jobs' rows name it, or will."""
        state = SegmentState.WHOLE if is_whole else SegmentState.FOUND
        row = _row(ref, state, now) | {"jobs": jobs, "size_bytes": size_bytes}
        await self._database.execute(self._database.upsert(SEGMENTS).values(row))

    async def stored(self) -> AsyncGenerator[list[SegmentRef]]:
        """Every segment whose object is valid, some at a time."""
        query = sa.select(*_REF).where(SEGMENTS.c.state.in_(STORED)).order_by(SEGMENTS.c.id)
        last = ""
        while rows := await self._database.fetch(query.where(SEGMENTS.c.id > last).limit(_PAGE)):
            last = rows[-1].id
            yield [SegmentRef(*row) for row in rows]

    async def forget(self, refs: Collection[SegmentRef]) -> int:
        """Of segments whose objects are lost; how many jobs' rows named them.

        Those are like the rows of jobs of which the archive has nothing. Nothing happens where
        another segment is in the place of one by now.
        """
        ids = [ref.id for ref in refs]
        is_stored = SEGMENTS.c.id.in_(ids), SEGMENTS.c.state.in_(STORED)
        async with self._database.write() as connection:
            query = sa.select(SEGMENTS.c.id, SEGMENTS.c.day).where(*is_stored).with_for_update()
            lost = (await connection.execute(query)).all()
            if not lost:
                return 0
            # The bound lets the database go by an index. Clocks differ, so it is a day later.
            named = JOBS.c.segment.in_(_aliases([row.id for row in lost]))
            latest = max(row.day for row in lost) + timedelta(days=2)
            bound = JOBS.c.created_at < datetime.combine(latest, time(), tzinfo=UTC)
            hot = sa.update(JOBS).where(named, bound)
            count = await connection.execute(
                hot.values(segment=None, archived_at=None, hot_since=None)
            )
            await connection.execute(_removal([row.id for row in lost]))
        return count.rowcount

    async def known(self, refs: Collection[SegmentRef]) -> set[str]:
        """The ids of those that the table has, in whatever state."""
        query = sa.select(SEGMENTS.c.id).where(SEGMENTS.c.id.in_([ref.id for ref in refs]))
        return {row.id for row in await self._database.fetch(query)}

    # Writing.

    async def begin(self, ref: SegmentRef, now: datetime) -> None:
        """Say that the object of a new segment is about to be stored."""
        row = _row(ref, SegmentState.WRITING, now)
        await self._database.execute(sa.insert(SEGMENTS).values(row))

    async def commit(self, written: Written, now: datetime) -> bool:
        """Have rows and segments name it, all or nothing; False where some changed meanwhile."""
        try:
            async with self._database.write() as connection:
                state = await _take_over(connection, written, now)
                settled = await connection.execute(_settle(written, state, now))
                if settled.rowcount != 1 or not await are_unchanged(connection, written.archived):
                    raise _Changed
                new = None if written.sources else written.ref.id
                await mark_archived(connection, written.archived, segment=new, now=now)
                forgotten = JOBS.c.id.in_(written.forgotten)
                await connection.execute(sa.update(JOBS).where(forgotten).values(segment=None))
        except _Changed:
            return False
        return True

    async def are_stored(self, refs: Collection[SegmentRef]) -> bool:
        """Whether nothing has come in the place of any of these."""
        mine = SEGMENTS.c.id.in_([ref.id for ref in refs]), SEGMENTS.c.state.in_(STORED)
        return len(await self._database.fetch(sa.select(SEGMENTS.c.id).where(*mine))) == len(refs)

    async def purged(self, ref: SegmentRef, now: datetime) -> None:
        """What it has is no longer in the log."""
        mine = (SEGMENTS.c.id == ref.id, SEGMENTS.c.state == SegmentState.PURGING)
        whole = sa.update(SEGMENTS).where(*mine).values(state=SegmentState.WHOLE, since=now)
        await self._database.execute(whole)

    async def give_up(self, ref: SegmentRef) -> None:
        """One that was begun and not committed is doomed; whoever still writes it cannot commit."""
        mine = (SEGMENTS.c.id == ref.id, SEGMENTS.c.state == SegmentState.WRITING)
        doomed = sa.update(SEGMENTS).where(*mine).values(state=SegmentState.DOOMED)
        await self._database.execute(doomed)

    async def gone(self, ref: SegmentRef) -> None:
        """The object of a doomed one is removed. Its row stays only where it leads to another."""
        mine = (SEGMENTS.c.id == ref.id, SEGMENTS.c.state == SegmentState.DOOMED)
        async with self._database.write() as connection:
            nowhere = sa.delete(SEGMENTS).where(*mine, SEGMENTS.c.moved_to.is_(None))
            await connection.execute(nowhere)
            gone = sa.update(SEGMENTS).where(*mine).values(state=SegmentState.GONE)
            await connection.execute(gone)

    # What is left to do.

    async def in_state(
        self,
        state: SegmentState,
        *,
        since: datetime | None = None,
        partition: int | None = None,
        limit: int = _PAGE,
    ) -> list[SegmentRef]:
        """Segments in this state; with `since`, those that have been in it for so long."""
        query = sa.select(*_REF).where(SEGMENTS.c.state == state)
        if since is not None:
            query = query.where(SEGMENTS.c.since <= since)
        if partition is not None:
            query = query.where(SEGMENTS.c.partition == partition)
        rows = await self._database.fetch(query.order_by(SEGMENTS.c.since).limit(limit))
        return [SegmentRef(*row) for row in rows]

    async def is_settled(self, partition: int) -> bool:
        """Whether no object of the partition may hold what no row says that it has."""
        unsettled = SEGMENTS.c.state.in_(_UNSETTLED), SEGMENTS.c.partition == partition
        return not await self._database.fetch(sa.select(SEGMENTS.c.id).where(*unsettled).limit(1))

    async def small(self, size_bytes: int, *, limit: int) -> list[tuple[SegmentRef, int]]:
        """Whole segments of less than `size_bytes`, with their sizes, by day and partition."""
        query = sa.select(*_REF, SEGMENTS.c.size_bytes)
        query = query.where(
            SEGMENTS.c.state == SegmentState.WHOLE, SEGMENTS.c.size_bytes < size_bytes
        )
        rows = await self._database.fetch(query.order_by(*_REF).limit(limit))
        return [(SegmentRef(*ref), size) for *ref, size in rows]

    # Removing.

    async def until(self, day: date, *, limit: int) -> list[SegmentRef]:
        """Whole segments of jobs that ended on `day` or before."""
        old = SEGMENTS.c.state == SegmentState.WHOLE, SEGMENTS.c.day <= day
        query = sa.select(*_REF).where(*old).order_by(SEGMENTS.c.since).limit(limit)
        return [SegmentRef(*row) for row in await self._database.fetch(query)]

    async def rows_of(self, ref: SegmentRef, job_ids: Collection[str]) -> list[SegmentRow]:
        """The rows of those of these jobs that name this segment."""
        here = JOBS.c.segment.in_(_aliases([ref.id])), JOBS.c.id.in_(job_ids)
        columns = JOBS.c.id, JOBS.c.position, JOBS.c.archived_at.is_(None).label("is_hot")
        return [
            SegmentRow(row.id, row.position, bool(row.is_hot))
            for row in await self._database.fetch(sa.select(*columns).where(*here))
        ]

    async def put_off(self, ref: SegmentRef, now: datetime) -> None:
        """Look at it after all others."""
        mine = SEGMENTS.c.id == ref.id
        await self._database.execute(sa.update(SEGMENTS).where(mine).values(since=now))

    async def remove(self, ref: SegmentRef) -> None:
        """Forget a segment whose object and whose jobs' rows are removed, and what led to it."""
        await self._database.execute(_removal([ref.id]))


def _removal(ids: Collection[str]) -> sa.Delete:
    """Of the rows of segments, and of those that lead to them."""
    return sa.delete(SEGMENTS).where(SEGMENTS.c.id.in_(ids) | SEGMENTS.c.moved_to.in_(ids))


def _aliases(ids: Collection[str]) -> sa.Select[Any]:
    """The ids by which rows of jobs may name these segments."""
    mine = SEGMENTS.c.id.in_(ids) | SEGMENTS.c.moved_to.in_(ids)
    return sa.select(SEGMENTS.c.id).where(mine)


async def _take_over(connection: AsyncConnection, written: Written, now: datetime) -> SegmentState:
    """Doom the sources; the state of the new segment. Raises _Changed where one is another's."""
    ids = [ref.id for ref in written.sources]
    query = sa.select(SEGMENTS.c.state).where(SEGMENTS.c.id.in_(ids), SEGMENTS.c.state.in_(STORED))
    states = list((await connection.execute(query.with_for_update())).scalars())
    is_purging = SegmentState.PURGING in states
    if len(states) != len(ids) or (is_purging and written.archived):
        raise _Changed  # in the second case one purge could not be told from the other
    doom = sa.update(SEGMENTS).where(SEGMENTS.c.id.in_(ids))
    doom = doom.values(state=SegmentState.DOOMED, moved_to=written.ref.id, since=now)
    await connection.execute(doom)
    # What led to a source leads to the new one: no way has more than one step.
    led = sa.update(SEGMENTS).where(SEGMENTS.c.moved_to.in_(ids))
    await connection.execute(led.values(moved_to=written.ref.id))
    return SegmentState.PURGING if written.archived or is_purging else SegmentState.WHOLE


def _settle(written: Written, state: SegmentState, now: datetime) -> sa.Update:
    mine = SEGMENTS.c.id == written.ref.id, SEGMENTS.c.state == SegmentState.WRITING
    values = {"jobs": written.jobs, "size_bytes": written.size_bytes}
    return sa.update(SEGMENTS).where(*mine).values(state=state, since=now, **values)


def _row(ref: SegmentRef, state: SegmentState, now: datetime) -> dict[str, object]:
    return {
        "id": ref.id,
        "day": ref.day,
        "partition": ref.partition,
        "jobs": 0,
        "size_bytes": 0,
        "state": state,
        "since": now,
        "moved_to": None,
    }
