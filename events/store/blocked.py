"""Jobs that the projection has stopped at, with the place of the first event that it left out.

An event is left out where this version cannot read it, where no row can hold what comes of it, or
where the one before it has not come. The job's later events are left out, too, and the other jobs
go on. Whoever can read the job folds its whole history from the log, and ends the stop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import Database
from events.store.tables import BLOCKED_JOBS


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the projection stopped at a job."""

    job_id: str
    position: int
    """Log position of the first event that was left out."""
    seen: int
    """Log position of the last one."""
    why: str
    since: datetime


class BlockedJobs:
    """The stops, as they are told to operators and looked at again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count(self) -> int:
        query = sa.select(sa.func.count().label("jobs")).select_from(BLOCKED_JOBS)
        [row] = await self._database.fetch(query)
        return int(row.jobs)

    async def stops(self, *, after: int = 0, limit: int) -> list[Stop]:
        """Those behind log position `after`, in log order."""
        behind = sa.select(BLOCKED_JOBS).where(BLOCKED_JOBS.c.position > after)
        rows = await self._database.fetch(behind.order_by(BLOCKED_JOBS.c.position).limit(limit))
        return [Stop(**row._mapping) for row in rows]


async def read_stops(connection: AsyncConnection, ids: Collection[str]) -> dict[str, Stop]:
    """Those of these jobs that are stopped at."""
    query = sa.select(BLOCKED_JOBS).where(BLOCKED_JOBS.c.job_id.in_(ids))
    stops = [Stop(**row._mapping) for row in await connection.execute(query)]
    return {stop.job_id: stop for stop in stops}


async def put_stops(
    connection: AsyncConnection, stops: Iterable[Stop], *, upsert: sa.Insert
) -> None:
    """`upsert`: an INSERT into the table that replaces rows."""
    if rows := [asdict(stop) for stop in stops]:
        await connection.execute(upsert, rows)


async def end_stops(connection: AsyncConnection, ids: Collection[str]) -> None:
    if ids:
        of_jobs = BLOCKED_JOBS.c.job_id.in_(ids)
        await connection.execute(sa.delete(BLOCKED_JOBS).where(of_jobs))


async def end_stop(connection: AsyncConnection, job_id: str, *, up_to: int | None) -> bool:
    """False if there is none, or an event behind log position `up_to` was left out already."""
    of_job = BLOCKED_JOBS.c.job_id == job_id
    if up_to is not None:
        of_job &= BLOCKED_JOBS.c.seen <= up_to
    return (await connection.execute(sa.delete(BLOCKED_JOBS).where(of_job))).rowcount > 0
