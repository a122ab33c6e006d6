"""Which segments there are, and which one has a job.

| state     | means                                                                 |
|-----------|-----------------------------------------------------------------------|
| `writing` | its object may be there or not, and no job is in it yet               |
| `purging` | its jobs are in it; the log may have them, too                        |
| `whole`   | its jobs are in it, and what it has is no longer in the log           |
| `doomed`  | its jobs are in another one, `moved_to`; its object may be there      |
| `gone`    | the same, without an object                                           |

A job's row names the segment that it was first written to. Where that one was rewritten or merged,
its own row says to which, so no row of a job changes then.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import sqlalchemy as sa

from events.archive.archive import SegmentRef
from events.store.database import Database
from events.store.tables import JOBS, SEGMENTS


class SegmentState(StrEnum):
    WRITING = "writing"
    PURGING = "purging"
    WHOLE = "whole"
    DOOMED = "doomed"
    GONE = "gone"


class Segments:
    """The table of segments. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, job_id: str) -> SegmentRef | None:
        """The segment that has events of the job now; None where none has."""
        first, now = SEGMENTS.alias("first"), SEGMENTS.alias("now")
        at = sa.func.coalesce(first.c.moved_to, first.c.id)
        query = (
            sa.select(now.c.day, now.c.partition, now.c.id)
            .select_from(JOBS.join(first, first.c.id == JOBS.c.segment).join(now, now.c.id == at))
            .where(JOBS.c.id == job_id)
        )
        rows = await self._database.fetch(query)
        return _ref(rows[0]) if rows else None

    async def add(self, ref: SegmentRef, *, jobs: int, size_bytes: int, now: datetime) -> None:
        """Add a segment that is there and whole, as a rebuild finds it; its jobs' rows name it."""
        row = _row(ref, SegmentState.WHOLE, now) | {"jobs": jobs, "size_bytes": size_bytes}
        await self._database.execute(self._database.upsert(SEGMENTS).values(row))

    async def in_state(
        self, state: SegmentState, *, since: datetime | None = None, limit: int = 500
    ) -> list[SegmentRef]:
        """Segments in this state; with `since`, those that have been in it for so long."""
        query = sa.select(SEGMENTS.c.day, SEGMENTS.c.partition, SEGMENTS.c.id)
        query = query.where(SEGMENTS.c.state == state)
        if since is not None:
            query = query.where(SEGMENTS.c.since <= since)
        rows = await self._database.fetch(query.order_by(SEGMENTS.c.since).limit(limit))
        return [_ref(row) for row in rows]


def _ref(row: sa.Row[*tuple[object, ...]]) -> SegmentRef:
    return SegmentRef(row.day, row.partition, row.id)


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
