"""The rows of jobs: their conversion, the offset of the projection, stops, and batches of events.

A *stop* marks the first event of a job that could not be projected, because this version cannot
read it, no row can store its result, or the event before it is missing. Later events of that job
are skipped until a process folds the whole job again. Other jobs are not affected.

The offset of the projection changes in the same transaction as the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, get_args

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.ext.asyncio import AsyncConnection

from events.delivery import has_delivery
from events.job import Job, fold
from events.result import status_of
from events.store.database import Database
from events.store.tables import BLOCKED_JOBS, JOBS, OFFSETS, PROJECTION_OFFSET
from events.types import Broken, End, Erased, Event, Failed, ImageStored, Unknown

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


def image_rows(events: Iterable[Event], jobs: Mapping[str, Job]) -> list[dict[str, Any]]:
    """Return the rows of the images in these events, without images that their jobs ignore.

    The table may already have some of these rows; the insert ignores them.
    """
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
        if isinstance(image := event.data, ImageStored)
        and (job := jobs.get(event.job_id)) is not None
        and job.image(image.index) == image
    ]


_JOB = TypeAdapter(Job)
_ENDS: dict[str, type[End]] = {end.type_name: end for end in get_args(End)}


def _states(job: Job) -> tuple[str, str]:
    """Return the job as JSON, and a shorter JSON without request, graph and upload URLs.

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
    return whole, json.dumps(state)


def from_state(state: str) -> Job:
    stored = json.loads(state)
    job = _JOB.validate_python(stored["job"])
    if stored["end"] is None:
        return job
    return replace(job, end=_ENDS[stored["end"]].model_validate(stored["job"]["end"]))


def listing(wanted: Mapping[str, Any]) -> sa.Select[Any]:
    """Select the jobs with these values of columns, except erased jobs, newest first.

    The value None matches every row. Summaries are selected, because the requests of a page
    together may have 100 MB.
    """
    query = sa.select(JOBS.c.summary).where(
        JOBS.c.status != ERASED,
        *(JOBS.c[name] == value for name, value in wanted.items() if value is not None),
    )
    return query.order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc())


def is_behind(job_id: str, *, of_owner: str | None = None) -> sa.ColumnElement[bool]:
    """Match rows after this job in a listing; no row if `of_owner` does not own the job."""
    seen = JOBS.alias("seen")
    last = sa.select(seen.c.created_at, seen.c.id).where(seen.c.id == job_id)
    if of_owner is not None:
        last = last.where(seen.c.owner == of_owner)
    return sa.tuple_(JOBS.c.created_at, JOBS.c.id) < last.scalar_subquery()


_IS_PROJECTION = OFFSETS.c.name == PROJECTION_OFFSET


def offset_column() -> sa.ColumnElement[int]:
    """Return the offset as a column of a query for other rows."""
    mine = OFFSETS.alias()
    return sa.select(mine.c.seq).where(mine.c.name == PROJECTION_OFFSET).scalar_subquery()


async def read_stored_offset(database: Database) -> int:
    [row] = await database.fetch(sa.select(OFFSETS.c.seq).where(_IS_PROJECTION))
    return int(row.seq)


async def move_stored_offset(connection: AsyncConnection, expected: int, position: int) -> bool:
    """Move the offset to `position`. Return False if the offset is not `expected`.

    The row of the offset is locked until the end of the transaction. Another process waits for the
    lock, and then finds the new offset.
    """
    moving = sa.update(OFFSETS).where(_IS_PROJECTION, OFFSETS.c.seq == expected)
    return (await connection.execute(moving.values(seq=position))).rowcount > 0


async def replace_stored_offset(connection: AsyncConnection, *, offset: int, log_end: int) -> bool:
    """Set the offset. Return False and change nothing if the stored offset is higher than `offset`.

    A stored offset beyond the end of the log, `log_end`, is always replaced. The row stays locked
    until the end of the transaction.
    """
    await lock_stored_offset(connection)
    seq = (await connection.execute(sa.select(OFFSETS.c.seq).where(_IS_PROJECTION))).scalar_one()
    if offset < seq <= log_end:
        return False
    await connection.execute(sa.update(OFFSETS).where(_IS_PROJECTION).values(seq=offset))
    return True


async def lock_stored_offset(connection: AsyncConnection) -> None:
    """Lock the offset, so that no other transaction applies events before this one ends."""
    held = sa.update(OFFSETS).where(_IS_PROJECTION).values(seq=OFFSETS.c.seq)
    await connection.execute(held)


@dataclass(frozen=True, slots=True)
class Stop:
    """The point in the events of a job at which the projection has stopped."""

    job_id: str
    position: int
    """The log position of the first event that was skipped."""
    seen: int
    """The log position of the last event that was skipped."""
    why: str
    since: datetime


class BlockedJobs:
    """Reads the stops."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self) -> int:
        query = sa.select(sa.func.count().label("jobs")).select_from(BLOCKED_JOBS)
        [row] = await self._database.fetch(query)
        return int(row.jobs)

    async def stops(self, *, after: int = 0, limit: int) -> list[Stop]:
        """Return the stops after the log position `after`, in log order."""
        behind = sa.select(BLOCKED_JOBS).where(BLOCKED_JOBS.c.position > after)
        rows = await self._database.fetch(behind.order_by(BLOCKED_JOBS.c.position).limit(limit))
        return [Stop(**row._mapping) for row in rows]


async def read_stops(connection: AsyncConnection, ids: Collection[str]) -> dict[str, Stop]:
    """Return the stops of these jobs, by job id."""
    query = sa.select(BLOCKED_JOBS).where(BLOCKED_JOBS.c.job_id.in_(ids))
    stops = [Stop(**row._mapping) for row in await connection.execute(query)]
    return {stop.job_id: stop for stop in stops}


async def put_stops(
    connection: AsyncConnection, stops: Iterable[Stop], *, upsert: sa.Insert
) -> None:
    """Write stops. `upsert` is an INSERT into the table that replaces rows."""
    if rows := [asdict(stop) for stop in stops]:
        await connection.execute(upsert, rows)


async def end_stops(connection: AsyncConnection, ids: Collection[str]) -> None:
    if ids:
        of_jobs = BLOCKED_JOBS.c.job_id.in_(ids)
        await connection.execute(sa.delete(BLOCKED_JOBS).where(of_jobs))


async def end_stop(connection: AsyncConnection, job_id: str, *, up_to: int | None) -> bool:
    """End a stop.

    Return False if there is no stop, or if an event after the log position `up_to` was skipped.
    """
    of_job = BLOCKED_JOBS.c.job_id == job_id
    if up_to is not None:
        of_job &= BLOCKED_JOBS.c.seen <= up_to
    return (await connection.execute(sa.delete(BLOCKED_JOBS).where(of_job))).rowcount > 0


@dataclass(frozen=True, slots=True)
class Step:
    """One folded event, and its job before and after the event."""

    event: Event
    before: Job | None
    after: Job


class Batch:
    """Computes the changes of the database rows by a batch of events."""

    def __init__(self, jobs: Mapping[str, Job], stops: Mapping[str, Stop], *, now: datetime):
        """`jobs` and `stops` are the rows before the batch, by job id."""
        self._rows = jobs
        self._stop_rows = stops
        self._jobs = dict(jobs)
        self._stops = dict(stops)
        self._now = now
        self.steps: list[Step] = []
        """The events that changed a job, without events that were skipped or folded before."""

    def add(self, event: Event) -> None:
        job, stop = self._jobs.get(event.job_id), self._stops.get(event.job_id)
        if isinstance(event.data, Erased):
            # An erasure does not depend on earlier events, so it ends a stop.
            self._stops.pop(event.job_id, None)
        elif stop is not None:
            self._stops[event.job_id] = replace(stop, seen=max(stop.seen, event.position))
            return
        elif why := _why_left_out(event, job):
            self._stops[event.job_id] = stop_at(event, why, now=self._now)
            return
        if (folded := fold([event], job)) is not None and folded is not job:
            self._jobs[event.job_id] = folded
            self.steps.append(Step(event, job, folded))

    @property
    def jobs(self) -> list[Job]:
        """The jobs whose rows change."""
        return [job for job in self._jobs.values() if job is not self._rows.get(job.id)]

    @property
    def stops(self) -> list[Stop]:
        """The stops whose rows change."""
        return [stop for id, stop in self._stops.items() if stop is not self._stop_rows.get(id)]

    @property
    def new_stops(self) -> list[Stop]:
        return [stop for id, stop in self._stops.items() if id not in self._stop_rows]

    @property
    def ended_stops(self) -> set[str]:
        """The ids of the jobs whose stops end."""
        return self._stop_rows.keys() - self._stops.keys()

    def image_rows(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        return image_rows(events, self._jobs)


def stop_at(event: Event, why: str, *, now: datetime) -> Stop:
    return Stop(event.job_id, event.position, event.position, why=why, since=now)


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
