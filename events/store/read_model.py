"""The read model: the SQL tables that answer queries about jobs, and the projection's offset.

A job is *blocked* at the first event that could not be projected, because this version cannot read
the event, no row can store its result, or the event before it is missing. Later events of that job
are skipped until a process folds the whole job again. Other jobs are not affected.

The offset of the projection changes in the same transaction as the rows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.ext.asyncio import AsyncConnection

from events.delivery import has_delivery
from events.job import Job, fold
from events.log import utc_now
from events.result import Status, status_of
from events.store.database import Database
from events.store.ended_jobs import UnsettledJobs
from events.store.records import OwnerBytes
from events.store.tables import (
    BLOCKED_JOBS,
    ERASURES,
    IMAGES,
    JOBS,
    OFFSETS,
    PROJECTION_OFFSET,
)
from events.store.uploads import upload_bytes
from events.types import (
    Broken,
    DeadLetter,
    End,
    Erased,
    Event,
    Failed,
    Flavour,
    ImageStored,
    Submitted,
    Unknown,
)
from storage.file_names import HistoryName

logger = logging.getLogger(__name__)

_QUICK_CHARS = 16 * 1024
"""The largest size of states that are decoded without a thread. This takes about a millisecond."""
ERASED = -1
"""The status of the row of an erased job."""


def job_row(job: Job) -> dict[str, Any]:
    state, summary = _states(job)
    return {
        "id": job.id,
        "owner": job.submitted.owner,
        "flavour": job.submitted.flavour.value,
        "endpoint": job.submitted.endpoint,
        "status": ERASED if job.erased else status_of(job.end).value,
        "created_at": job.submitted_at,
        "ended_at": job.ended_at,
        "version": job.version,
        "position": job.position,
        "state": state,
        "summary": summary,
        "key_id": job.submitted.key_id,
        "dead_letter": job.end.dead_letter if isinstance(job.end, Failed) else None,
        "log_bytes": job.log_bytes,
        "result_bytes": job.result_bytes,
        "settled_at": None if has_delivery(job.submitted) else job.ended_at,
    }


def image_rows(events: Iterable[Event], jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """Return the rows of the images in these events, without images that their jobs ignore.

    The table may already have some of these rows; the insert ignores them.
    """
    by_id = {job.id: job for job in jobs}
    return [
        {
            "job_id": event.job_id,
            "index": image.index,
            "storage_key": image.key,
            "size_bytes": image.size_bytes,
            "digest": image.digest,
            "position": event.position,
            "poster_key": None if image.poster is None else image.poster.key,
        }
        for event in events
        if isinstance(image := event.data, ImageStored)
        and (job := by_id.get(event.job_id)) is not None
        and job.image(image.index) == image
    ]


_JOB = TypeAdapter(Job)
_ENDS: dict[str, type[End]] = {end.type_name: end for end in get_args(End)}


def _states(job: Job) -> tuple[str, str]:
    """Return the job as JSON, and a shorter JSON without request, graph and encrypted texts.

    Both include the type of the end, because `Failed` and `Cancelled` have the same members.
    """
    end = None if job.end is None else job.end.type_name
    state = {"end": end, "job": _JOB.dump_python(job, mode="json")}
    whole = json.dumps(state)
    submitted = state["job"]["submitted"]
    submitted["request"] = {}
    submitted["compiled"] = None
    if puts := submitted["image_puts"]:
        submitted["image_puts"] = [""] * len(puts)
    submitted["sealed_extra_data"] = None
    if submitted["workflow"]:
        submitted["workflow"]["inputs"] = {}
    return whole, json.dumps(state)


def from_state(state: str) -> Job:
    stored = json.loads(state)
    job = _JOB.validate_python(stored["job"])
    if stored["end"] is None:
        return job
    return replace(job, end=_ENDS[stored["end"]].model_validate(stored["job"]["end"]))


async def _decoded(states: Sequence[str]) -> list[Job]:
    """Decode the states, in a thread if they are large, so that the event loop is not blocked."""

    def decode() -> list[Job]:
        return [from_state(each) for each in states]

    is_quick = sum(map(len, states)) <= _QUICK_CHARS
    return decode() if is_quick else await asyncio.to_thread(decode)


_IS_PROJECTION = OFFSETS.c.name == PROJECTION_OFFSET


def _offset_column() -> sa.ColumnElement[int]:
    """Return the offset as a column of a query for other rows."""
    mine = OFFSETS.alias()
    return sa.select(mine.c.seq).where(mine.c.name == PROJECTION_OFFSET).scalar_subquery()


async def move_offset(connection: AsyncConnection, expected: int, position: int) -> bool:
    """Move the offset to `position`. Return False if the offset is not `expected`.

    The row of the offset is locked until the end of the transaction. Another process waits for the
    lock, and then finds the new offset.
    """
    moving = sa.update(OFFSETS).where(_IS_PROJECTION, OFFSETS.c.seq == expected)
    return (await connection.execute(moving.values(seq=position))).rowcount > 0


async def replace_offset(connection: AsyncConnection, *, offset: int, log_end: int) -> bool:
    """Set the offset. Return False and change nothing if the stored offset is higher than `offset`.

    A stored offset beyond the end of the log, `log_end`, is always replaced. The row stays locked
    until the end of the transaction.
    """
    await lock_offset(connection)
    seq = (await connection.execute(sa.select(OFFSETS.c.seq).where(_IS_PROJECTION))).scalar_one()
    if offset < seq <= log_end:
        return False
    await connection.execute(sa.update(OFFSETS).where(_IS_PROJECTION).values(seq=offset))
    return True


async def lock_offset(connection: AsyncConnection) -> None:
    """Lock the offset, so that no other transaction applies events before this one ends."""
    held = sa.update(OFFSETS).where(_IS_PROJECTION).values(seq=OFFSETS.c.seq)
    await connection.execute(held)


@dataclass(frozen=True, slots=True)
class BlockedJob:
    job_id: str
    position: int
    """The log position of the first event that was skipped."""
    seen: int
    """The log position of the last event that was skipped."""
    why: str
    since: datetime


class BlockedJobs:
    """Reads the rows of blocked jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self) -> int:
        query = sa.select(sa.func.count().label("jobs")).select_from(BLOCKED_JOBS)
        [row] = await self._database.fetch(query)
        return int(row.jobs)

    async def page(self, *, after: int = 0, limit: int) -> list[BlockedJob]:
        """Return the jobs that are blocked after the log position `after`, in log order."""
        behind = sa.select(BLOCKED_JOBS).where(BLOCKED_JOBS.c.position > after)
        rows = await self._database.fetch(behind.order_by(BLOCKED_JOBS.c.position).limit(limit))
        return [BlockedJob(**row._mapping) for row in rows]


@dataclass(frozen=True, slots=True)
class FoldedEvent:
    """An event, and its job before and after the event."""

    event: Event
    before: Job | None
    after: Job


class RowChanges:
    """Computes the changes of the database rows by a batch of events."""

    def __init__(
        self, jobs: Mapping[str, Job], blocked: Mapping[str, BlockedJob], *, now: datetime
    ):
        """`jobs` and `blocked` are the rows before the batch, by job id."""
        self._rows = jobs
        self._blocked_rows = blocked
        self._jobs = dict(jobs)
        self._blocked = dict(blocked)
        self._now = now
        self.folded: list[FoldedEvent] = []
        """The events that changed a job, without events that were skipped or folded before."""

    def add(self, event: Event) -> None:
        job, blocked = self._jobs.get(event.job_id), self._blocked.get(event.job_id)
        if isinstance(event.data, Erased):
            # An erasure does not depend on earlier events, so it ends a block.
            self._blocked.pop(event.job_id, None)
        elif blocked is not None:
            seen = max(blocked.seen, event.position)
            self._blocked[event.job_id] = replace(blocked, seen=seen)
            return
        elif why := _why_left_out(event, job):
            self._blocked[event.job_id] = _blocked_at(event, why, now=self._now)
            return
        if (folded := fold([event], job)) is not None and folded is not job:
            self._jobs[event.job_id] = folded
            self.folded.append(FoldedEvent(event, job, folded))

    @property
    def jobs(self) -> list[Job]:
        """The jobs whose rows change."""
        return [job for job in self._jobs.values() if job is not self._rows.get(job.id)]

    @property
    def blocked(self) -> list[BlockedJob]:
        """The blocked jobs whose rows change."""
        blocked, before = self._blocked, self._blocked_rows
        return [each for id, each in blocked.items() if each is not before.get(id)]

    @property
    def newly_blocked(self) -> list[BlockedJob]:
        return [each for id, each in self._blocked.items() if id not in self._blocked_rows]

    @property
    def unblocked(self) -> set[str]:
        """The ids of the jobs that are not blocked any more."""
        return self._blocked_rows.keys() - self._blocked.keys()


def _blocked_at(event: Event, why: str, *, now: datetime) -> BlockedJob:
    return BlockedJob(event.job_id, event.position, event.position, why=why, since=now)


def _why_left_out(event: Event, job: Job | None) -> str | None:
    """Return the reason why an event is skipped, or None if the event is folded."""
    if job is not None and (job.erased or event.position <= job.position):
        return None
    match event.data:
        case Unknown(original_type=type_name):
            return f"an event of a later version ({type_name})"
        case Broken():
            return "not an event"
    next_version = job.version + 1 if job else 1
    return f"event {next_version} is missing" if event.version > next_version else None


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

    async def kept_bytes(self, owner: str) -> tuple[int, OwnerBytes]:
        """Return the offset, and the sizes of the owner's jobs and uploads, from one snapshot."""
        query = sa.select(
            _offset_column(),
            sa.func.coalesce(sa.func.sum(JOBS.c.log_bytes), 0),
            sa.func.coalesce(sa.func.sum(JOBS.c.result_bytes), 0),
            upload_bytes(owner).scalar_subquery(),
        )
        [row] = await self._database.fetch(query.where(JOBS.c.owner == owner))
        offset, *kept = map(int, row)
        return offset, OwnerBytes(*kept)


class ReadModel:
    """The jobs that the projection has folded so far, and the offset of its last folded event."""

    def __init__(
        self,
        database: Database,
        *,
        now: Callable[[], datetime] = utc_now,
        on_folded: Callable[[Sequence[FoldedEvent]], None] = lambda _: None,
    ) -> None:
        """After each commit of `apply`, `on_folded` is called with the events that were folded."""
        self.usage = Usage(database)
        self.blocked = BlockedJobs(database)
        self.unsettled = UnsettledJobs(database)
        """The ended jobs that are not settled."""
        self._database = database
        self._now = now
        self._on_folded = on_folded
        # Statements are built once, because in SQLAlchemy the construction of a statement takes
        # longer than its execution.
        self._put_job = database.upsert(JOBS, newer_by=JOBS.c.version, keep=[JOBS.c.history])
        self._put_blocked_job = database.upsert(BLOCKED_JOBS)
        self._put_image = database.insert(IMAGES).on_conflict_do_nothing()
        self._put_erasure = database.insert(ERASURES).on_conflict_do_nothing()
        self._state = database.point_read(JOBS.c.state, by=JOBS.c.id)
        self._summary = database.point_read(JOBS.c.summary, by=JOBS.c.id)

    async def offset(self) -> int:
        """Return the offset of the last folded event; 0 before the first event."""
        [row] = await self._database.fetch(sa.select(OFFSETS.c.seq).where(_IS_PROJECTION))
        return int(row.seq)

    async def apply(self, events: Sequence[Event], *, expected: int) -> bool:
        """Fold `events`, which follow the offset `expected`, into the rows in one transaction.

        Return False and change nothing if another process has moved the offset.
        """
        if not events:
            return await self.offset() == expected
        async with self._database.write() as connection:
            if not await move_offset(connection, expected, events[-1].position):
                return False
            ids = {event.job_id for event in events}
            jobs, blocked = await _read_jobs(connection, ids), await _read_blocked(connection, ids)
            await _remove_former(connection, events, jobs)
            batch = RowChanges(jobs, blocked, now=self._now())
            for event in events:
                batch.add(event)
            await self._put(connection, batch.jobs)
            await self._put_images(connection, image_rows(events, batch.jobs))
            await self._put_blocked(connection, batch.blocked)
            if batch.unblocked:
                former = BLOCKED_JOBS.c.job_id.in_(batch.unblocked)
                await connection.execute(sa.delete(BLOCKED_JOBS).where(former))
        _log_blocked(batch.newly_blocked)
        self._on_folded(batch.folded)
        return True

    async def block_at(self, event: Event, why: str, *, expected: int) -> bool:
        """Block the job of an event that the database cannot store.

        `expected` and the returned value are those of `apply`.
        """
        blocked = [_blocked_at(event, why, now=self._now())]
        async with self._database.write() as connection:
            if not await move_offset(connection, expected, event.position):
                return False
            await self._put_blocked(connection, blocked)
        _log_blocked(blocked)
        return True

    async def catch_up(self, job_id: str, history: Sequence[Event]) -> bool:
        """Fold a blocked job again from its whole `history`, and end its block.

        Return False if events after `history` were skipped, or if the job is not blocked any more.
        Raises JobUnreadable.
        """
        job = fold(history)
        async with self._database.write() as connection:
            await lock_offset(connection)
            of_job = BLOCKED_JOBS.c.job_id == job_id
            if history:
                of_job &= BLOCKED_JOBS.c.seen <= history[-1].position
            if (await connection.execute(sa.delete(BLOCKED_JOBS).where(of_job))).rowcount == 0:
                return False
            if job is not None:
                await self._put(connection, [job])
                await self._put_images(connection, image_rows(history, [job]))
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

    async def _put_blocked(
        self, connection: AsyncConnection, blocked: Iterable[BlockedJob]
    ) -> None:
        if rows := [asdict(each) for each in blocked]:
            await connection.execute(self._put_blocked_job, rows)

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
        """Return the storage keys of the images of these jobs, and of their posters."""
        keys = (IMAGES.c.storage_key, IMAGES.c.poster_key)
        query = sa.select(*keys).where(IMAGES.c.job_id.in_(job_ids))
        rows = await self._database.fetch(query)
        return {key for row in rows for key in row if key is not None}

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
        return None if state is None else (await _decoded([state]))[0]

    async def jobs_of_ids(self, job_ids: Sequence[str]) -> list[Job]:
        """Return the jobs with these ids, in this order, with their requests.

        Jobs without rows are left out.
        """
        query = sa.select(JOBS.c.id, JOBS.c.state).where(JOBS.c.id.in_(job_ids))
        states = {row.id: row.state for row in await self._database.fetch(query)}
        return await _decoded([states[id] for id in job_ids if id in states])

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
        ends: Collection[type[End]] = (),
    ) -> list[Job]:
        """Return the owner's jobs, newest first, without their requests.

        With `ends`, the result has only jobs that have ended in one of these ways.

        `before` is the id of the last job of the previous page. The result is empty if `before` is
        not a job of this owner.
        """
        wanted = {"owner": owner, "status": status, "flavour": flavour, "endpoint": endpoint}
        query = _listing(wanted).offset(offset)
        if is_ended is not None:
            has_ended = JOBS.c.ended_at.is_not(None)
            query = query.where(has_ended if is_ended else ~has_ended)
        if ends:
            query = query.where(_has_end(ends))
        if before is not None:
            query = query.where(_is_behind(before, of_owner=owner))
        rows = await self._database.fetch(query.limit(limit))
        return await _decoded([row.summary for row in rows])

    async def count_ended(self, owner: str, flavour: Flavour, ends: Collection[type[End]]) -> int:
        """Return the number of the owner's jobs that have ended in one of these ways."""
        mine = (JOBS.c.owner == owner) & (JOBS.c.flavour == flavour) & (JOBS.c.status != ERASED)
        count = sa.select(sa.func.count().label("jobs")).where(mine, _has_end(ends))
        [row] = await self._database.fetch(count)
        return int(row.jobs)

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
        query = _listing({"owner": owner, "status": status, "endpoint": endpoint})
        if dead_letters:
            # With the first condition, the database uses the partial index.
            is_one = JOBS.c.dead_letter.is_not(None)
            query = query.where(is_one, JOBS.c.dead_letter.in_(sorted(dead_letters)))
        if before is not None:
            query = query.where(_is_behind(before))
        rows = await self._database.fetch(query.limit(limit))
        return await _decoded([row.summary for row in rows])


def _listing(wanted: Mapping[str, Any]) -> sa.Select[Any]:
    """Select the jobs with these values of columns, except erased jobs, newest first.

    The value None matches every row. Summaries are selected, because the requests of a page
    together may have 100 MB.
    """
    query = sa.select(JOBS.c.summary).where(
        JOBS.c.status != ERASED,
        *(JOBS.c[name] == value for name, value in wanted.items() if value is not None),
    )
    return query.order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc())


def _has_end(ends: Collection[type[End]]) -> sa.ColumnElement[bool]:
    """Match jobs with one of these ends. `Failed` and `Cancelled` have the same status, so the
    beginning of the summary is read.
    """
    if set(ends) == set(get_args(End)):
        return JOBS.c.ended_at.is_not(None)
    begins = (json.dumps({"end": each.type_name}).removesuffix("}") for each in ends)
    return sa.or_(*(JOBS.c.summary.startswith(each, autoescape=True) for each in begins))


def _is_behind(job_id: str, *, of_owner: str | None = None) -> sa.ColumnElement[bool]:
    """Match rows after this job in a listing; no row if `of_owner` does not own the job."""
    seen = JOBS.alias("seen")
    last = sa.select(seen.c.created_at, seen.c.id).where(seen.c.id == job_id)
    if of_owner is not None:
        last = last.where(seen.c.owner == of_owner)
    return sa.tuple_(JOBS.c.created_at, JOBS.c.id) < last.scalar_subquery()


def _log_blocked(jobs: Iterable[BlockedJob]) -> None:
    for job in jobs:
        fields = {"job_id": job.job_id, "position": job.position, "why": job.why}
        logger.error("job stopped at", extra={"action": "project", **fields})


async def _read_jobs(connection: AsyncConnection, ids: set[str]) -> dict[str, Job]:
    rows = await connection.execute(sa.select(JOBS.c.state).where(JOBS.c.id.in_(ids)))
    return {job.id: job for job in map(from_state, rows.scalars())}


async def _read_blocked(connection: AsyncConnection, ids: set[str]) -> dict[str, BlockedJob]:
    query = sa.select(BLOCKED_JOBS).where(BLOCKED_JOBS.c.job_id.in_(ids))
    blocked = [BlockedJob(**row._mapping) for row in await connection.execute(query)]
    return {each.job_id: each for each in blocked}


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
