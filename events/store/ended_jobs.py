"""The rows of ended jobs: where their events are, and whether the jobs are settled.

| `hot_since` | `history` | where the events of the ended job are                        |
|-------------|-----------|--------------------------------------------------------------|
| a time      | NULL      | All events are in the log.                                   |
| a time      | a key     | The object has the events up to its writing. The log has the |
|             |           | later events, and may still have some of the earlier events. |
| NULL        | a key     | All events are in the object.                                |

A job is settled when it has ended and its delivery, if any, has ended, too. The column `settled_at`
has the time. The projection sets it for a job without a delivery, and `actors.callbacks.reaper` for
a job whose delivery has ended.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import Database
from events.store.tables import JOBS, LOST_CALLBACKS_OFFSET, OFFSETS


@dataclass(frozen=True, slots=True)
class EndedJob:
    """The row of an ended job. Each change of the job changes one of these values."""

    id: str
    version: int
    position: int
    ended_at: datetime
    hot_since: datetime | None
    """The start of the hot time; None if the log has no events of the job."""
    history: str | None
    """The key of the history object, if any."""
    log_bytes: int


_COLUMNS = (
    JOBS.c.id,
    JOBS.c.version,
    JOBS.c.position,
    JOBS.c.ended_at,
    JOBS.c.hot_since,
    JOBS.c.history,
    JOBS.c.log_bytes,
)
_BY_END = (JOBS.c.ended_at, JOBS.c.id)
_HAS_ENDED = JOBS.c.ended_at.is_not(None)


class EndedJobs:
    """Reads and changes the rows of ended jobs. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def due_for_move(self, since: datetime, *, limit: int) -> list[EndedJob]:
        """Return the jobs whose hot time began at or before `since`, oldest first."""
        is_cool = JOBS.c.hot_since <= since
        query = sa.select(*_COLUMNS).where(is_cool).order_by(JOBS.c.hot_since, JOBS.c.id)
        return [EndedJob(*row) for row in await self._database.fetch(query.limit(limit))]

    async def ended_before(
        self, ended: datetime, *, after: EndedJob | None = None, limit: int
    ) -> list[EndedJob]:
        """Return the jobs that ended before `ended`, oldest first.

        `after` is the last job of the previous page.
        """
        query = sa.select(*_COLUMNS).where(JOBS.c.ended_at < ended)
        if after is not None:
            query = query.where(sa.tuple_(*_BY_END) > sa.tuple_(after.ended_at, after.id))
        rows = await self._database.fetch(query.order_by(*_BY_END).limit(limit))
        return [EndedJob(*row) for row in rows]

    async def rows_of(self, job_ids: Collection[str]) -> dict[str, EndedJob]:
        """Return the rows of these jobs, by id. Jobs that have not ended are left out."""
        query = sa.select(*_COLUMNS).where(JOBS.c.id.in_(job_ids), _HAS_ENDED)
        return {row.id: EndedJob(*row) for row in await self._database.fetch(query)}

    async def find_history(self, job_id: str) -> str | None:
        """Return the key of the job's history object, or None if there is no object."""
        rows = await self._database.fetch(sa.select(JOBS.c.history).where(JOBS.c.id == job_id))
        return rows[0].history if rows else None

    async def with_history(self, owner: str, *, after: int, limit: int) -> list[tuple[str, str]]:
        """Return the ids and endpoints of an owner's jobs that have a history object, in log order.

        Jobs whose last event is not after the offset `after` are left out.
        """
        mine = (JOBS.c.owner == owner, JOBS.c.position > after, JOBS.c.history.is_not(None))
        query = sa.select(JOBS.c.id, JOBS.c.endpoint).where(*mine)
        rows = await self._database.fetch(query.order_by(JOBS.c.position).limit(limit))
        return [(row.id, row.endpoint) for row in rows]

    async def find_histories(self, job_ids: Collection[str]) -> dict[str, tuple[str | None, bool]]:
        """Return, by job, the key of the history object, and whether the log may have events.

        Jobs without a row are left out. Jobs that have not ended are included.
        """
        is_cold = _HAS_ENDED & JOBS.c.hot_since.is_(None)
        query = sa.select(JOBS.c.id, JOBS.c.history, is_cold.label("is_cold"))
        rows = await self._database.fetch(query.where(JOBS.c.id.in_(job_ids)))
        return {row.id: (row.history, not row.is_cold) for row in rows}

    async def restart_hot_time(self, job_id: str, since: datetime) -> None:
        """Restart the hot time of an ended job, before an event of it or of its delivery is
        appended.
        """
        mine = sa.update(JOBS).where(JOBS.c.id == job_id, _HAS_ENDED)
        await self._database.execute(mine.values(hot_since=since, settled_at=None))

    async def postpone(self, jobs: Collection[EndedJob], since: datetime) -> None:
        """Set the start of the hot time of these jobs, to move them later."""
        if jobs:
            mine = (JOBS.c.id.in_([job.id for job in jobs]), JOBS.c.hot_since.is_not(None))
            await self._database.execute(sa.update(JOBS).where(*mine).values(hot_since=since))

    async def store_history_keys(self, histories: Mapping[EndedJob, str]) -> list[EndedJob]:
        """Store the keys of history objects in the rows of their jobs. Return the new rows.

        A job whose row has changed since it was read is left out.
        """
        async with self._database.write() as connection:
            unchanged = await _unchanged(connection, histories)
            named = [replace(job, history=histories[job]) for job in unchanged]
            if changes := [{"job": job.id, "key": job.history} for job in named]:
                mine = sa.update(JOBS).where(JOBS.c.id == sa.bindparam("job"))
                await connection.execute(mine.values(history=sa.bindparam("key")), changes)
            return named

    async def mark_moved(self, jobs: Collection[EndedJob], now: datetime) -> None:
        """Record that the log has no events of these jobs any more. Skip jobs whose rows have
        changed.

        The deliveries of these jobs have ended, so the jobs become settled.
        """
        async with self._database.write() as connection:
            ids = [job.id for job in await _unchanged(connection, jobs)]
            settled_at = sa.func.coalesce(JOBS.c.settled_at, now)
            values = {"hot_since": None, "settled_at": settled_at, **moved_bytes()}
            await connection.execute(sa.update(JOBS).where(JOBS.c.id.in_(ids)).values(values))


async def _unchanged(connection: AsyncConnection, jobs: Collection[EndedJob]) -> list[EndedJob]:
    """Return the jobs whose rows have not changed, and lock these rows for the transaction."""
    query = sa.select(*_COLUMNS).where(JOBS.c.id.in_([job.id for job in jobs])).order_by(JOBS.c.id)
    rows = {EndedJob(*row) for row in await connection.execute(query.with_for_update())}
    return [job for job in jobs if job in rows]


def moved_bytes(jobs: sa.Table = JOBS) -> dict[str, sa.ColumnElement[int]]:
    """Return the new sizes of a job whose events have left the log and now count as results."""
    return {"log_bytes": sa.literal(0), "result_bytes": jobs.c.result_bytes + jobs.c.log_bytes}


@dataclass(frozen=True, slots=True)
class UnsettledJob:
    id: str
    position: int
    """The position of the job's last event in the log."""
    ended_at: datetime
    has_delivery: bool
    hot_since: datetime | None
    """As in `EndedJob`. A request for another delivery changes it."""


class UnsettledJobs:
    """The unsettled jobs in log order, and the stored position of the reaper that reads them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, *, after: int, limit: int) -> list[UnsettledJob]:
        """Return the unsettled jobs whose last event is after the position `after`."""
        # With the first two conditions, the database uses the partial index.
        query = (
            sa.select(JOBS.c.id, JOBS.c.position, JOBS.c.ended_at, JOBS.c.summary, JOBS.c.hot_since)
            .where(JOBS.c.ended_at.is_not(None), JOBS.c.settled_at.is_(None))
            .where(JOBS.c.position > after)
            .order_by(JOBS.c.position)
            .limit(limit)
        )
        return [
            UnsettledJob(
                row.id, row.position, row.ended_at, _has_delivery(row.summary), row.hot_since
            )
            for row in await self._database.fetch(query)
        ]

    async def has(self, job_id: str) -> bool:
        """Return whether the job has a row and is not settled. It need not have ended."""
        mine = (JOBS.c.id == job_id, JOBS.c.settled_at.is_(None))
        return bool(await self._database.fetch(sa.select(JOBS.c.id).where(*mine)))

    async def settle(self, since: Mapping[UnsettledJob, datetime]) -> None:
        """Mark these jobs as settled, each with its time.

        A job whose hot time has changed since it was read is left out, because its callback may
        have been requested again.
        """
        if not since:
            return
        as_read = sa.bindparam("as_read", type_=JOBS.c.hot_since.type)
        change = (
            sa.update(JOBS)
            .where(JOBS.c.id == sa.bindparam("job_id"), _HAS_ENDED)
            .where(JOBS.c.hot_since.is_not_distinct_from(as_read))
            .values(settled_at=sa.bindparam("since", type_=JOBS.c.settled_at.type))
        )
        rows = [
            {"job_id": job.id, "as_read": job.hot_since, "since": time}
            for job, time in since.items()
        ]
        async with self._database.write() as connection:
            await connection.execute(change, rows)

    async def reopen(self, job_id: str) -> None:
        """Mark a job as unsettled, because its callback was requested again."""
        mine = sa.update(JOBS).where(JOBS.c.id == job_id, _HAS_ENDED)
        await self._database.execute(mine.values(settled_at=None))

    async def stored_position(self) -> int:
        """Return the position that `store_position` stored last, or 0."""
        query = sa.select(OFFSETS.c.seq).where(OFFSETS.c.name == LOST_CALLBACKS_OFFSET)
        rows = await self._database.fetch(query)
        return int(rows[0].seq) if rows else 0

    async def store_position(self, position: int) -> None:
        place = {"name": LOST_CALLBACKS_OFFSET, "seq": position}
        await self._database.execute(self._database.upsert(OFFSETS).values(place))


def _has_delivery(summary: str) -> bool:
    """Return whether a job has a delivery, even if another part of the job is damaged."""
    submitted: dict[str, Any] = json.loads(summary)["job"]["submitted"]
    return submitted.get("callback_url") is not None or bool(submitted.get("image_puts"))
