"""How large the archive is."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from events.store.archiving.segments import STORED
from events.store.database import Database
from events.store.tables import SEGMENTS


@dataclass(frozen=True, slots=True)
class ArchiveTotals:
    segments: int
    size_bytes: int


async def archive_totals(database: Database) -> ArchiveTotals:
    """Of segments whose objects are valid. Raises DatabaseUnavailable."""
    size_bytes = sa.func.coalesce(sa.func.sum(SEGMENTS.c.size_bytes), 0)
    query = sa.select(sa.func.count().label("segments"), size_bytes.label("size_bytes"))
    [row] = await database.fetch(query.where(SEGMENTS.c.state.in_(STORED)))
    return ArchiveTotals(int(row.segments), int(row.size_bytes))
