"""Jobs that ended and have something in the log: what may leave it, and what may be removed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import Database
from events.store.tables import JOBS
from events.streams.log_streams import LogPlace


@dataclass(frozen=True, slots=True)
class HotJob:
    """What its row says of such a job. Whoever changes the job changes that as well."""

    id: str
    version: int
    position: int
    ended_at: datetime
    hot_since: datetime | None
    """What is in the log may be needed there since then; None: since its end."""
    segment: str | None
    """Where its older events are, if the archive has some."""
    log_bytes: int


_COLUMNS = (
    JOBS.c.id,
    JOBS.c.version,
    JOBS.c.position,
    JOBS.c.ended_at,
    JOBS.c.hot_since,
    JOBS.c.segment,
    sa.func.coalesce(JOBS.c.log_bytes, 0).label("log_bytes"),
)
_PLACE = (JOBS.c.ended_at, JOBS.c.id)
_HOT = (JOBS.c.archived_at.is_(None), JOBS.c.ended_at.is_not(None))


def _is_cool(since: datetime) -> sa.ColumnElement[bool]:
    return JOBS.c.hot_since.is_(None) | (JOBS.c.hot_since <= since)


def _is_behind(place: LogPlace) -> sa.ColumnElement[bool]:
    position = JOBS.c.position
    if isinstance(place, int):
        return position > place
    count = len(place.parts)
    parts = (
        (position % count == index) & (position > part) for index, part in enumerate(place.parts)
    )
    return (position > min(place.parts)) & sa.or_(*parts)


class HotJobs:
    """Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def cool(self, since: datetime, *, limit: int) -> list[HotJob]:
        """Those that have not needed the log since this time; the first ended first."""
        return await self._found(JOBS.c.ended_at <= since, _is_cool(since), limit=limit)

    async def old(
        self, ended: datetime, *, cool_since: datetime, after: HotJob | None = None, limit: int
    ) -> list[HotJob]:
        """Those that ended before this time, of which the archive has nothing; see `cool`.

        `after`: the last one already seen.
        """
        is_old = [JOBS.c.ended_at < ended, JOBS.c.segment.is_(None)]
        if after is not None:
            is_old.append(sa.tuple_(*_PLACE) > sa.tuple_(after.ended_at, after.id))
        return await self._found(*is_old, _is_cool(cool_since), limit=limit)

    async def _found(self, *wanted: sa.ColumnElement[bool], limit: int) -> list[HotJob]:
        query = sa.select(*_COLUMNS).where(*_HOT, *wanted)
        rows = await self._database.fetch(query.order_by(*_PLACE).limit(limit))
        return [HotJob(*row) for row in rows]

    async def left(self, owner: str, *, after: LogPlace, limit: int) -> list[tuple[str, str]]:
        """Id and endpoint of an owner's jobs that have nothing in the log any more.

        Those whose last event stands behind the place `after`, the first ended first.
        """
        mine = (JOBS.c.owner == owner, _is_behind(after), JOBS.c.archived_at.is_not(None))
        query = sa.select(JOBS.c.id, JOBS.c.endpoint).where(*mine)
        rows = await self._database.fetch(query.order_by(JOBS.c.position).limit(limit))
        return [(row.id, row.endpoint) for row in rows]

    async def heat(self, job_id: str, since: datetime) -> None:
        """Say that the log is about to have something of an ended job that is needed there."""
        await self._database.execute(
            sa.update(JOBS)
            .where(JOBS.c.id == job_id, JOBS.c.ended_at.is_not(None))
            .values(archived_at=None, hot_since=since)
        )

    async def postpone(self, jobs: Collection[HotJob], since: datetime) -> None:
        """Look at these later: they need the log still."""
        if jobs:
            mine = (JOBS.c.id.in_([job.id for job in jobs]), JOBS.c.archived_at.is_(None))
            await self._database.execute(sa.update(JOBS).where(*mine).values(hot_since=since))

    async def unchanged(self, jobs: Iterable[HotJob]) -> bool:
        """Whether the rows of all these jobs are as they were read."""
        async with self._database.write() as connection:
            return await are_unchanged(connection, list(jobs))


async def are_unchanged(connection: AsyncConnection, jobs: Sequence[HotJob]) -> bool:
    """Whether their rows are as they were read; they stay so until the transaction ends."""
    query = sa.select(*_COLUMNS).where(JOBS.c.id.in_([job.id for job in jobs]), *_HOT)
    rows = await connection.execute(query.with_for_update())
    return {HotJob(*row) for row in rows} == set(jobs)


async def mark_archived(
    connection: AsyncConnection, jobs: Iterable[HotJob], *, segment: str | None, now: datetime
) -> None:
    """Say that nothing of these jobs is needed in the log.

    What they took of it counts as a part of the image store from now on, though it is smaller
    there. Their deliveries have ended, so they are settled.

    `segment`: None where their rows name the right one already.
    """
    mark = sa.update(JOBS).where(JOBS.c.id.in_([job.id for job in jobs]))
    settled_at = sa.func.coalesce(JOBS.c.settled_at, now)
    mark = mark.values(archived_at=now, hot_since=None, settled_at=settled_at, **archived_bytes())
    await connection.execute(mark if segment is None else mark.values(segment=segment))


def archived_bytes(jobs: sa.Table = JOBS) -> dict[str, sa.ColumnElement[int]]:
    """What an archived job takes, of what its row says while it is in the log.

    Of one that an older version wrote, which knew no sizes, the results stay unknown.
    """
    results = jobs.c.result_bytes + sa.func.coalesce(jobs.c.log_bytes, 0)
    return {"log_bytes": sa.literal(0), "result_bytes": results}
