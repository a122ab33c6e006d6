"""Endpoints: rows that no log can give back."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

import sqlalchemy as sa

from events.store.database import Database
from events.store.records import Endpoint
from events.store.tables import ENDPOINTS, NOTED_ENDPOINTS


class Endpoints:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Endpoint]:
        """By id."""
        rows = await self._database.fetch(sa.select(ENDPOINTS).order_by(ENDPOINTS.c.id))
        return [Endpoint(**row._mapping) for row in rows]

    async def get(self, id: str) -> Endpoint | None:
        rows = await self._database.fetch(sa.select(ENDPOINTS).where(ENDPOINTS.c.id == id))
        return Endpoint(**rows[0]._mapping) if rows else None

    async def put(self, endpoint: Endpoint) -> None:
        """Add it, or replace the one of its id."""
        await self._database.execute(self._database.upsert(ENDPOINTS).values(asdict(endpoint)))

    async def add_missing(self, endpoint: Endpoint) -> None:
        """Add it unless one of its id is there. Safe while another process does the same."""
        insert = self._database.insert(ENDPOINTS).values(asdict(endpoint))
        await self._database.execute(insert.on_conflict_do_nothing())

    async def note(self, ids: Collection[str]) -> None:
        """Keep in mind, for good, that these have a row."""
        if ids:
            rows = [{"id": id} for id in ids]
            insert = self._database.insert(NOTED_ENDPOINTS).values(rows)
            await self._database.execute(insert.on_conflict_do_nothing())

    async def noted(self) -> set[str]:
        """Those that had a row once, as far as this database knows."""
        return {row.id for row in await self._database.fetch(sa.select(NOTED_ENDPOINTS))}
