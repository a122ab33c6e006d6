"""Ended jobs of which something is left to do, as far as the database knows: deliveries.

A job is settled when it has ended and, where it has a delivery, that has ended too.
`jobs.settled_at` says since when; the projection sets it for jobs without one, and
`actors.callbacks.lost` for the others once it finds their delivery ended. Rows of older versions
have none, and get theirs in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from events.store.database import Database
from events.store.tables import CHECKPOINTS, JOBS, LOST_CALLBACKS_CHECKPOINT
from events.wire.callback_keys import key_by


@dataclass(frozen=True, slots=True)
class UnsettledJob:
    id: str
    position: int
    """Of its last event in the log."""
    ended_at: datetime
    key: str | None
    """Of its delivery on the callback queue; None where it has none."""


class UnsettledJobs:
    """Pages of them in log order, with a place that is kept for whoever walks through them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(self, *, after: int, limit: int) -> list[UnsettledJob]:
        """Those whose last event is behind the position `after`."""
        state = sa.func.coalesce(JOBS.c.summary, JOBS.c.state).label("state")
        # The first two conditions are those of the index.
        query = (
            sa.select(JOBS.c.id, JOBS.c.position, JOBS.c.ended_at, state)
            .where(JOBS.c.ended_at.is_not(None), JOBS.c.settled_at.is_(None))
            .where(JOBS.c.position > after)
            .order_by(JOBS.c.position)
            .limit(limit)
        )
        return [
            UnsettledJob(row.id, row.position, row.ended_at, _key(row.id, row.state))
            for row in await self._database.fetch(query)
        ]

    async def has(self, job_id: str) -> bool:
        """Whether something is left to do of an ended job, as far as is known."""
        mine = (JOBS.c.id == job_id, JOBS.c.settled_at.is_(None))
        return bool(await self._database.fetch(sa.select(JOBS.c.id).where(*mine)))

    async def settle(self, since: Mapping[str, datetime]) -> None:
        """These jobs are settled, each since its time."""
        rows = [{"job_id": job_id, "since": time} for job_id, time in since.items()]
        await self._set(rows)

    async def reopen(self, job_id: str) -> None:
        """Something is left to do again: its callback was asked for once more."""
        await self._set([{"job_id": job_id, "since": None}])

    async def _set(self, rows: list[dict[str, object]]) -> None:
        if not rows:
            return
        time = sa.bindparam("since", type_=JOBS.c.settled_at.type)
        change = (
            sa.update(JOBS)
            .where(JOBS.c.id == sa.bindparam("job_id"), JOBS.c.ended_at.is_not(None))
            .values(settled_at=time)
        )
        async with self._database.write() as connection:
            await connection.execute(change, rows)

    async def place(self) -> int:
        """The position that `move_to` was given last; 0 before."""
        query = sa.select(CHECKPOINTS.c.seq).where(CHECKPOINTS.c.name == LOST_CALLBACKS_CHECKPOINT)
        rows = await self._database.fetch(query)
        return int(rows[0].seq) if rows else 0

    async def move_to(self, position: int) -> None:
        place = {"name": LOST_CALLBACKS_CHECKPOINT, "seq": position}
        await self._database.execute(self._database.upsert(CHECKPOINTS).values(place))


def _key(job_id: str, state: str) -> str | None:
    """Without the rest of the job, so that no other part of a row can hold up the walk."""
    submitted: dict[str, Any] = json.loads(state)["job"]["submitted"]
    url = submitted.get("callback_url")
    if url is None and not submitted.get("image_puts"):
        return None
    return key_by(job_id, callback_url=url, owner=str(submitted.get("owner")))
