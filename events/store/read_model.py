"""The read model: the SQL tables that answer queries about jobs, and the projection's offset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.job import Job, fold
from events.log import utc_now
from events.result import Status
from events.store.database import Database
from events.store.ended_jobs import UnsettledJobs
from events.store.job_rows import (
    Batch,
    BlockedJobs,
    Step,
    Stop,
    end_stop,
    end_stops,
    from_state,
    image_rows,
    is_behind,
    job_row,
    listing,
    lock_stored_offset,
    move_stored_offset,
    offset_column,
    put_stops,
    read_stops,
    read_stored_offset,
    stop_at,
)
from events.store.records import KeptBytes
from events.store.tables import (
    BLOCKED_JOBS,
    ERASURES,
    IMAGES,
    JOBS,
    OFFSETS,
    PROJECTION_OFFSET,
)
from events.store.uploads import upload_bytes
from events.types import DeadLetter, Event, Flavour, Submitted
from storage.file_names import HistoryName


class Usage:
    """Computes sums over the rows of the read model."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open_jobs_by_caller(self) -> tuple[int, dict[tuple[str, str], int]]:
        """Return the offset, and the number of open jobs by owner and key, from one snapshot."""
        running = JOBS.c.status == Status.RUNNING.value
        caller = (JOBS.c.owner, JOBS.c.key_id)
        query = (
            sa.select(OFFSETS.c.seq, *caller, sa.func.count(JOBS.c.owner).label("jobs"))
            .select_from(OFFSETS.outerjoin(JOBS, running))
            .where(OFFSETS.c.name == PROJECTION_OFFSET)
            .group_by(OFFSETS.c.seq, *caller)
        )
        rows = await self._database.fetch(query)
        return int(rows[0].seq), {(row.owner, row.key_id): row.jobs for row in rows if row.jobs}

    async def open_jobs(self, owner: str) -> int:
        """Return the number of open jobs of the owner."""
        mine = (JOBS.c.owner == owner) & (JOBS.c.status == Status.RUNNING.value)
        [row] = await self._database.fetch(sa.select(sa.func.count().label("jobs")).where(mine))
        return int(row.jobs)

    async def kept_bytes(self, owner: str) -> tuple[int, KeptBytes]:
        """Return the offset, and the sizes of the owner's jobs and uploads, from one snapshot."""
        query = sa.select(
            offset_column(),
            sa.func.coalesce(sa.func.sum(JOBS.c.log_bytes), 0),
            sa.func.coalesce(sa.func.sum(JOBS.c.result_bytes), 0),
            upload_bytes(owner).scalar_subquery(),
        )
        [row] = await self._database.fetch(query.where(JOBS.c.owner == owner))
        offset, *kept = map(int, row)
        return offset, KeptBytes(*kept)


logger = logging.getLogger(__name__)


class ReadModel:
    """The jobs that the projection has folded so far, and the offset of its last folded event."""

    def __init__(
        self,
        database: Database,
        *,
        now: Callable[[], datetime] = utc_now,
        on_folded: Callable[[Sequence[Step]], None] = lambda _: None,
    ) -> None:
        """After each commit of `apply`, `on_folded` is called with the events that were folded."""
        self.usage = Usage(database)
        self.blocked = BlockedJobs(database)
        """The stops of blocked jobs."""
        self.unsettled = UnsettledJobs(database)
        """The ended jobs that are not settled."""
        self._database = database
        self._now = now
        self._on_folded = on_folded
        # Statements are built once, because in SQLAlchemy the construction of a statement takes
        # longer than its execution.
        self._put_job = database.upsert(JOBS, newer_by=JOBS.c.version, keep=[JOBS.c.history])
        self._put_stop = database.upsert(BLOCKED_JOBS)
        self._put_image = database.insert(IMAGES).on_conflict_do_nothing()
        self._put_erasure = database.insert(ERASURES).on_conflict_do_nothing()
        self._state = database.point_read(JOBS.c.state, by=JOBS.c.id)
        self._summary = database.point_read(JOBS.c.summary, by=JOBS.c.id)

    async def offset(self) -> int:
        """Return the offset of the last folded event; 0 before the first event."""
        return await read_stored_offset(self._database)

    async def apply(self, events: Sequence[Event], *, expected: int) -> bool:
        """Fold `events`, which follow the offset `expected`, into the rows in one transaction.

        Return False and change nothing if another process has moved the offset.
        """
        if not events:
            return await self.offset() == expected
        async with self._database.write() as connection:
            if not await move_stored_offset(connection, expected, events[-1].position):
                return False
            ids = {event.job_id for event in events}
            jobs, stops = await _read_jobs(connection, ids), await read_stops(connection, ids)
            await _remove_former(connection, events, jobs)
            batch = Batch(jobs, stops, now=self._now())
            for event in events:
                batch.add(event)
            await self._put(connection, batch.jobs)
            await self._put_images(connection, batch.image_rows(events))
            await self._put_stops(connection, batch.stops)
            await end_stops(connection, batch.ended_stops)
        _log_stops(batch.new_stops)
        self._on_folded(batch.steps)
        return True

    async def stop_at(self, event: Event, why: str, *, expected: int) -> bool:
        """Stop the job of an event that the database cannot store.

        `expected` and the returned value are those of `apply`.
        """
        stop = stop_at(event, why, now=self._now())
        async with self._database.write() as connection:
            if not await move_stored_offset(connection, expected, event.position):
                return False
            await self._put_stops(connection, [stop])
        _log_stops([stop])
        return True

    async def catch_up(self, job_id: str, history: Sequence[Event]) -> bool:
        """Fold a stopped job again from its whole `history`, and end its stop.

        Return False if events after `history` were skipped, or if the stop has already ended.
        Raises JobUnreadable.
        """
        job = fold(history)
        async with self._database.write() as connection:
            await lock_stored_offset(connection)
            up_to = history[-1].position if history else None
            if not await end_stop(connection, job_id, up_to=up_to):
                return False
            if job is not None:
                await self._put(connection, [job])
                await self._put_images(connection, image_rows(history, {job.id: job}))
        return True

    async def erase(self, job: Job) -> None:
        """Write the row of an erased job, before the projection has read its `Erased`."""
        async with self._database.write() as connection:
            await self._put(connection, [job])

    async def _put(self, connection: AsyncConnection, jobs: list[Job]) -> None:
        """Write the rows of jobs. A row with a newer version is not replaced.

        A newer row exists if a job was erased between the read and the write. The row keeps the key
        of the history object, even if the log has events of the job again. The hot time begins at
        the write, because a submission cannot find the job before its row exists.
        """
        if jobs:
            now = self._now()
            rows = [job_row(job) | {"hot_since": now if job.ended_at else None} for job in jobs]
            await connection.execute(self._put_job, rows)
        if erased := [job for job in jobs if job.erased]:
            images = IMAGES.c.job_id.in_([job.id for job in erased])
            await connection.execute(sa.delete(IMAGES).where(images))
            # A history object of an older version is removed with the files, so the row must not
            # name it any more.
            for job in erased:
                own = HistoryName(job.id, job.version, 0).key
                other = (JOBS.c.id == job.id, JOBS.c.history != own)
                await connection.execute(sa.update(JOBS).where(*other).values(history=None))
            rows = [
                {"job_id": job.id, "erased_at": job.ended_at, "due_at": job.ended_at}
                for job in erased
            ]
            await connection.execute(self._put_erasure, rows)

    async def _put_images(self, connection: AsyncConnection, rows: list[dict[str, Any]]) -> None:
        if rows:
            await connection.execute(self._put_image, rows)

    async def _put_stops(self, connection: AsyncConnection, stops: Sequence[Stop]) -> None:
        await put_stops(connection, stops, upsert=self._put_stop)

    async def due_erasures(self, now: datetime, *, limit: int) -> list[tuple[str, datetime]]:
        """Return the erased jobs that are due for a clean-up, with the times of their erasure."""
        due = sa.select(ERASURES.c.job_id, ERASURES.c.erased_at).where(ERASURES.c.due_at <= now)
        rows = await self._database.fetch(due.order_by(ERASURES.c.due_at).limit(limit))
        return [(row.job_id, row.erased_at) for row in rows]

    async def settle_erasure(self, job_id: str, *, again_at: datetime | None) -> None:
        """Set the time of the next clean-up of an erased job; None means no further clean-up."""
        mine = ERASURES.c.job_id == job_id
        settle: sa.UpdateBase = sa.delete(ERASURES).where(mine)
        if again_at is not None:
            settle = sa.update(ERASURES).where(mine).values(due_at=again_at)
        await self._database.execute(settle)

    async def remove(self, positions: Mapping[str, int]) -> None:
        """Delete the rows of jobs whose last event still has this position.

        Other rows stay, because the id of a removed job may belong to a new job.
        """
        mine = sa.tuple_(JOBS.c.id, JOBS.c.position).in_(list(positions.items()))
        async with self._database.write() as connection:
            query = sa.select(JOBS.c.id).where(mine).with_for_update()
            await _delete(connection, (await connection.execute(query)).scalars().all())

    async def image_keys(self, job_ids: Collection[str]) -> set[str]:
        """Return the storage keys of the images of these jobs."""
        query = sa.select(IMAGES.c.storage_key).where(IMAGES.c.job_id.in_(job_ids))
        return {row.storage_key for row in await self._database.fetch(query)}

    async def open_job_ids(self) -> list[str]:
        """Return the ids of the jobs of all owners that have not ended, oldest first."""
        query = sa.select(JOBS.c.id).where(JOBS.c.status == Status.RUNNING.value)
        oldest_first = query.order_by(JOBS.c.created_at, JOBS.c.id)
        return [row.id for row in await self._database.fetch(oldest_first)]

    async def job(self, job_id: str, *, with_request: bool = True) -> Job | None:
        """Return the job, or None if it has no row.

        Without `with_request`, the request and the graph are empty, because they may be large.
        """
        state = await (self._state(job_id) if with_request else self._summary(job_id))
        return None if state is None else from_state(state)

    async def jobs_of_ids(self, job_ids: Sequence[str]) -> list[Job]:
        """Return the jobs with these ids, in this order, with their requests.

        Jobs without rows are left out.
        """
        query = sa.select(JOBS.c.id, JOBS.c.state).where(JOBS.c.id.in_(job_ids))
        states = {row.id: row.state for row in await self._database.fetch(query)}
        return [from_state(states[id]) for id in job_ids if id in states]

    async def jobs(
        self,
        owner: str,
        *,
        status: Status | None = None,
        flavour: Flavour | None = None,
        endpoint: str | None = None,
        limit: int = 50,
        before: str | None = None,
        offset: int = 0,
        is_ended: bool | None = None,
    ) -> list[Job]:
        """Return the owner's jobs, newest first, without their requests.

        `before` is the id of the last job of the previous page. The result is empty if `before` is
        not a job of this owner.
        """
        wanted = {"owner": owner, "status": status, "flavour": flavour, "endpoint": endpoint}
        query = listing(wanted).offset(offset)
        if is_ended is not None:
            has_ended = JOBS.c.ended_at.is_not(None)
            query = query.where(has_ended if is_ended else ~has_ended)
        if before is not None:
            query = query.where(is_behind(before, of_owner=owner))
        rows = await self._database.fetch(query.limit(limit))
        return [from_state(row.summary) for row in rows]

    async def every_owners_jobs(
        self,
        *,
        owner: str | None = None,
        status: Status | None = None,
        endpoint: str | None = None,
        dead_letters: Collection[DeadLetter] = (),
        limit: int = 50,
        before: str | None = None,
    ) -> list[Job]:
        """Return the jobs of all owners, newest first, without their requests.

        With `dead_letters`, the result has only dead letters of these kinds. `before` is the id of
        the last job of the previous page. The result is empty if this job does not exist.
        """
        query = listing({"owner": owner, "status": status, "endpoint": endpoint})
        if dead_letters:
            # With the first condition, the database uses the partial index.
            is_one = JOBS.c.dead_letter.is_not(None)
            query = query.where(is_one, JOBS.c.dead_letter.in_(sorted(dead_letters)))
        if before is not None:
            query = query.where(is_behind(before))
        rows = await self._database.fetch(query.limit(limit))
        return [from_state(row.summary) for row in rows]


def _log_stops(stops: Iterable[Stop]) -> None:
    for stop in stops:
        fields = {"job_id": stop.job_id, "position": stop.position, "why": stop.why}
        logger.error("job stopped at", extra={"action": "project", **fields})


async def _read_jobs(connection: AsyncConnection, ids: set[str]) -> dict[str, Job]:
    rows = await connection.execute(sa.select(JOBS.c.state).where(JOBS.c.id.in_(ids)))
    return {job.id: job for job in map(from_state, rows.scalars())}


async def _remove_former(
    connection: AsyncConnection, events: Iterable[Event], before: dict[str, Job]
) -> None:
    """Delete the rows of removed jobs whose ids now belong to new jobs."""
    former = {
        event.job_id
        for event in events
        if isinstance(event.data, Submitted)
        and (job := before.get(event.job_id)) is not None
        and job.position < event.position
    }
    for job_id in former:
        del before[job_id]
    await _delete(connection, former)


async def _delete(connection: AsyncConnection, job_ids: Collection[str]) -> None:
    if not job_ids:
        return
    for column in (IMAGES.c.job_id, ERASURES.c.job_id, BLOCKED_JOBS.c.job_id, JOBS.c.id):
        await connection.execute(sa.delete(column.table).where(column.in_(job_ids)))
