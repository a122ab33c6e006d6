"""Jobs as the results projection has folded them, in SQL, with the position that it has reached."""

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
from events.store.batch import Batch, Step, stop_at
from events.store.blocked import BlockedJobs, Stop, end_stop, end_stops, put_stops, read_stops
from events.store.checkpoint import (
    add_checkpoints,
    hold_checkpoint,
    move_checkpoint,
    read_checkpoint,
)
from events.store.database import Database
from events.store.job_rows import from_state, image_rows, is_behind, job_row, listing
from events.store.tables import (
    BLOCKED_JOBS,
    ERASURES,
    IMAGES,
    JOBS,
    SUMMARY,
)
from events.store.unsettled import UnsettledJobs
from events.store.usage import Usage
from events.streams.log_streams import ONE_STREAM, LogPlace, LogStreams
from events.types import DeadLetter, Event, Flavour, Submitted

logger = logging.getLogger(__name__)


class ReadModel:
    """Jobs as `Results` has folded them so far, and the position of the last event folded."""

    def __init__(
        self,
        database: Database,
        *,
        streams: LogStreams = ONE_STREAM,
        now: Callable[[], datetime] = utc_now,
        on_folded: Callable[[Sequence[Step]], None] = lambda _: None,
    ) -> None:
        """`streams`: what the log is. `on_folded` is told of the events that `apply` has folded,
        once it is committed.
        """
        self.usage = Usage(database, streams)
        """What these rows add up to for a key and an owner."""
        self.blocked = BlockedJobs(database)
        """The jobs that it has stopped at."""
        self.unsettled = UnsettledJobs(database)
        """Those of these jobs of which something is left to do after their end."""
        self._database = database
        self._streams = streams
        self._now = now
        self._on_folded = on_folded
        # Statements are made once: SQLAlchemy takes longer for it than to run one.
        self._put_job = database.upsert(JOBS, newer_by=JOBS.c.version, keep=[JOBS.c.segment])
        self._put_stop = database.upsert(BLOCKED_JOBS)
        self._put_image = database.insert(IMAGES).on_conflict_do_nothing()
        self._put_erasure = database.insert(ERASURES).on_conflict_do_nothing()
        self._state = database.point_read(JOBS.c.state, by=JOBS.c.id)
        self._summary = database.point_read(SUMMARY, by=JOBS.c.id)

    async def checkpoint(self) -> LogPlace:
        """Of the last events folded into the rows; 0 before the first."""
        return await read_checkpoint(self._database, self._streams)

    async def begin(self) -> None:
        """Before `apply` is called for the first time: each stream gets a checkpoint."""
        await add_checkpoints(self._database, self._streams)

    async def apply(self, events: Sequence[Event], *, expected: int) -> bool:
        """Fold `events` of one stream, those that follow position `expected`, into the rows, all
        or nothing.

        False if the checkpoint is not `expected`: another instance is ahead, nothing was done.
        """
        if not events:
            return await self.checkpoint() == expected
        async with self._database.write() as connection:
            stream = self._streams.at(events[-1].position)
            if not await move_checkpoint(connection, stream, expected, events[-1].position):
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
        _tell(batch.new_stops)
        self._on_folded(batch.steps)
        return True

    async def stop_at(self, event: Event, why: str, *, expected: int) -> bool:
        """Leave out an event that no row can hold, and what follows of its job; see `apply`."""
        stop = stop_at(event, why, now=self._now())
        async with self._database.write() as connection:
            stream = self._streams.at(event.position)
            if not await move_checkpoint(connection, stream, expected, event.position):
                return False
            await self._put_stops(connection, [stop])
        _tell([stop])
        return True

    async def catch_up(self, job_id: str, history: Sequence[Event]) -> bool:
        """Fold a job that was stopped at anew, from all its events, and end the stop.

        False if others were left out meanwhile, or the stop has ended. Raises JobUnreadable.
        """
        job = fold(history)
        async with self._database.write() as connection:
            stream = self._streams.all()[self._streams.of_job(job_id)]
            await hold_checkpoint(connection, stream)
            up_to = history[-1].position if history else None
            if not await end_stop(connection, job_id, up_to=up_to):
                return False
            if job is not None:
                # A version that knew no stops may have gone on without the event.
                stale = (JOBS.c.id == job.id) & (JOBS.c.version <= job.version)
                await connection.execute(sa.update(JOBS).where(stale).values(version=0))
                await self._put(connection, [job])
                await self._put_images(connection, image_rows(history, {job.id: job}))
        return True

    async def erase(self, job: Job) -> None:
        """Replace the row of `job`, which is erased, before the projection does."""
        async with self._database.write() as connection:
            await self._put(connection, [job])

    async def _put(self, connection: AsyncConnection, jobs: list[Job]) -> None:
        """Replace only older rows: between reading a row and writing it, its job may be erased.

        What the archive has of a job it has still, but there is something in the log again. An end
        is needed there from now on, whatever time it has: who looked for its row found none.
        """
        if jobs:
            now = self._now()
            rows = [job_row(job) | {"hot_since": now if job.ended_at else None} for job in jobs]
            await connection.execute(self._put_job, rows)
        if erased := [job for job in jobs if job.erased]:
            images = IMAGES.c.job_id.in_([job.id for job in erased])
            await connection.execute(sa.delete(IMAGES).where(images))
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
        """Erased jobs that are due for a clean-up, with the time of their erasure."""
        due = sa.select(ERASURES.c.job_id, ERASURES.c.erased_at).where(ERASURES.c.due_at <= now)
        rows = await self._database.fetch(due.order_by(ERASURES.c.due_at).limit(limit))
        return [(row.job_id, row.erased_at) for row in rows]

    async def settle_erasure(self, job_id: str, *, again_at: datetime | None) -> None:
        """Schedule the next clean-up of an erased job, or forget it (`again_at` None)."""
        mine = ERASURES.c.job_id == job_id
        settle: sa.UpdateBase = sa.delete(ERASURES).where(mine)
        if again_at is not None:
            settle = sa.update(ERASURES).where(mine).values(due_at=again_at)
        await self._database.execute(settle)

    async def remove(self, positions: Mapping[str, int]) -> None:
        """Delete the rows of jobs, each as long as its last event is the one at this position.

        Nothing happens where there are none: an id may be another job's once its job is removed.
        """
        mine = sa.tuple_(JOBS.c.id, JOBS.c.position).in_(list(positions.items()))
        async with self._database.write() as connection:
            query = sa.select(JOBS.c.id).where(mine).with_for_update()
            await _delete(connection, (await connection.execute(query)).scalars().all())

    async def image_keys(self, job_ids: Collection[str]) -> set[str]:
        """The storage keys of the images of these jobs."""
        query = sa.select(IMAGES.c.storage_key).where(IMAGES.c.job_id.in_(job_ids))
        return {row.storage_key for row in await self._database.fetch(query)}

    async def open_job_ids(self) -> list[str]:
        """Jobs of every owner that have not ended, oldest first."""
        query = sa.select(JOBS.c.id).where(JOBS.c.status == Status.RUNNING.value)
        oldest_first = query.order_by(JOBS.c.created_at, JOBS.c.id)
        return [row.id for row in await self._database.fetch(oldest_first)]

    async def job(self, job_id: str, *, with_request: bool = True) -> Job | None:
        """What the caller asked for may be much, and is empty where it is not wanted."""
        state = await (self._state(job_id) if with_request else self._summary(job_id))
        return None if state is None else from_state(state)

    async def jobs_of_ids(self, job_ids: Sequence[str]) -> list[Job]:
        """Those that there are, in this order, with their requests."""
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
        """The owner's jobs, newest first, without their requests.

        `before`: the id of the last one already seen; empty if it is no job of this owner.
        """
        wanted = {"owner": owner, "status": status, "flavour": flavour, "endpoint": endpoint}
        query = listing(wanted).offset(offset)
        if is_ended is not None:
            has_ended = JOBS.c.ended_at.is_not(None)
            query = query.where(has_ended if is_ended else ~has_ended)
        if before is not None:
            query = query.where(is_behind(before, of_owner=owner))
        rows = await self._database.fetch(query.limit(limit))
        return [from_state(row.state) for row in rows]

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
        """Jobs of all owners, newest first, without their requests; with `dead_letters`, those
        alone.

        `before`: the id of the last one already seen; empty if there is no such job.
        """
        query = listing({"owner": owner, "status": status, "endpoint": endpoint})
        if dead_letters:
            # The first condition is that of the index.
            is_one = JOBS.c.dead_letter.is_not(None)
            query = query.where(is_one, JOBS.c.dead_letter.in_(sorted(dead_letters)))
        if before is not None:
            query = query.where(is_behind(before))
        rows = await self._database.fetch(query.limit(limit))
        return [from_state(row.state) for row in rows]


def _tell(stops: Iterable[Stop]) -> None:
    for stop in stops:
        fields = {"job_id": stop.job_id, "position": stop.position, "why": stop.why}
        logger.error("job stopped at", extra={"action": "project", **fields})


async def _read_jobs(connection: AsyncConnection, ids: set[str]) -> dict[str, Job]:
    rows = await connection.execute(sa.select(JOBS.c.state).where(JOBS.c.id.in_(ids)))
    return {job.id: job for job in map(from_state, rows.scalars())}


async def _remove_former(
    connection: AsyncConnection, events: Iterable[Event], before: dict[str, Job]
) -> None:
    """Delete the rows of jobs that are removed from the log, and whose ids others have now."""
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
