"""What keys and owners use, as the results projection has counted it so far."""

from __future__ import annotations

import sqlalchemy as sa

from events.result import Status
from events.store.checkpoint import checkpoint_columns, place_in
from events.store.database import Database
from events.store.records import KeptBytes
from events.store.tables import CHECKPOINTS, JOBS, RESULTS_CHECKPOINT
from events.store.uploads import upload_bytes
from events.streams.log_streams import ONE_STREAM, LogPlace, LogStreams


class Usage:
    """Adds up the rows of the read model."""

    def __init__(self, database: Database, streams: LogStreams = ONE_STREAM) -> None:
        self._database = database
        self._streams = streams

    async def open_jobs_by_caller(self) -> tuple[LogPlace, dict[tuple[str, str | None], int]]:
        """The checkpoint, and how many jobs of each owner and key have not ended.

        Both are from one snapshot. Rows of an older version have no key until their next event.
        """
        running = JOBS.c.status == Status.RUNNING.value
        caller = (JOBS.c.owner, JOBS.c.key_id)
        seqs = checkpoint_columns(self._streams)
        query = (
            sa.select(*seqs, *caller, sa.func.count(JOBS.c.owner).label("jobs"))
            .select_from(CHECKPOINTS.outerjoin(JOBS, running))
            .where(CHECKPOINTS.c.name == RESULTS_CHECKPOINT)
            .group_by(*caller)
        )
        rows = await self._database.fetch(query)
        place = place_in(self._streams, rows[0][: len(seqs)])
        return place, {(row.owner, row.key_id): row.jobs for row in rows if row.jobs}

    async def open_jobs(self, owner: str) -> int:
        """How many jobs of the owner have not ended."""
        mine = (JOBS.c.owner == owner) & (JOBS.c.status == Status.RUNNING.value)
        [row] = await self._database.fetch(sa.select(sa.func.count().label("jobs")).where(mine))
        return int(row.jobs)

    async def kept_bytes(self, owner: str) -> tuple[LogPlace, KeptBytes]:
        """The checkpoint, and what the owner's jobs and uploads take; all from one snapshot.

        Jobs of an older version count for nothing until their next event.
        """
        query = sa.select(
            *checkpoint_columns(self._streams),
            sa.func.coalesce(sa.func.sum(JOBS.c.log_bytes), 0),
            sa.func.coalesce(sa.func.sum(JOBS.c.result_bytes), 0),
            upload_bytes(owner).scalar_subquery(),
        )
        [row] = await self._database.fetch(query.where(JOBS.c.owner == owner))
        seqs, kept = row[: self._streams.count], row[self._streams.count :]
        return place_in(self._streams, seqs), KeptBytes(*map(int, kept))
