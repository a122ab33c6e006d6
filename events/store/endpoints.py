"""Endpoints: rows that no log can give back."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, TypeAlias

import sqlalchemy as sa

from events.store.database import ENDPOINTS_LOCK, Database
from events.store.records import Endpoint, StoredEndpoint
from events.store.tables import ENDPOINTS, NOTED_ENDPOINTS

_MEMBERS = tuple(member.name for member in fields(Endpoint))
_REVISION = sa.func.coalesce(ENDPOINTS.c.revision, 1)

Check: TypeAlias = Callable[[Collection[Endpoint]], None]
"""Is given every endpoint as it is before a write, and raises what forbids that. Of writes that are
checked one comes after the other, so each sees those before it.
"""


class Endpoints:
    """Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Endpoint]:
        """By id."""
        return [stored.endpoint for stored in await self.stored()]

    async def get(self, id: str) -> Endpoint | None:
        stored = await self.stored_one(id)
        return None if stored is None else stored.endpoint

    async def stored(self, *, owner: str | None = None) -> list[StoredEndpoint]:
        """By id; of one owner, or all."""
        query = sa.select(ENDPOINTS).order_by(ENDPOINTS.c.id)
        if owner is not None:
            query = query.where(ENDPOINTS.c.owner == owner)
        return [_stored(row) for row in await self._database.fetch(query)]

    async def stored_one(self, id: str) -> StoredEndpoint | None:
        rows = await self._database.fetch(sa.select(ENDPOINTS).where(ENDPOINTS.c.id == id))
        return _stored(rows[0]) if rows else None

    async def put(self, endpoint: Endpoint) -> None:
        """Add it, or replace the one of its id, whatever its row was given."""
        row = _row(StoredEndpoint(endpoint=endpoint))
        await self._database.execute(self._database.upsert(ENDPOINTS).values(row))

    async def add_missing(self, endpoint: Endpoint) -> None:
        """Add it unless one of its id is there. Safe while another process does the same."""
        await self.add(StoredEndpoint(endpoint=endpoint))

    async def add(self, stored: StoredEndpoint, *, check: Check | None = None) -> bool:
        """False if one of its id is there, which stays as it is. Raises what `check` raises."""
        insert = self._database.insert(ENDPOINTS).values(_row(stored))
        return await self._write(insert.on_conflict_do_nothing(), check) > 0

    async def change(
        self, stored: StoredEndpoint, *, check: Check | None = None
    ) -> StoredEndpoint | None:
        """Write a changed row in the place of its `revision`. The row as it is now, with the next
        revision; None if it has another one by now, or is gone. Raises what `check` raises.
        """
        changed = replace(stored, revision=stored.revision + 1)
        update = sa.update(ENDPOINTS).where(_at(stored)).values(_row(changed))
        return changed if await self._write(update, check) else None

    async def remove(self, stored: StoredEndpoint) -> bool:
        """False if it has another revision by now, or is gone."""
        return await self._database.execute(sa.delete(ENDPOINTS).where(_at(stored))) > 0

    async def settle(self, default: Endpoint) -> None:
        """Bring the row of the default endpoint up to the settings, but for what it was given."""
        while (stored := await self.stored_one(default.id)) is not None:
            given = {name: getattr(stored.endpoint, name) for name in stored.given}
            settled = replace(default, **given)
            if settled == stored.endpoint:
                return
            if await self.change(replace(stored, endpoint=settled)) is not None:
                return
        await self.add_missing(default)

    async def _write(self, statement: sa.UpdateBase, check: Check | None) -> int:
        if check is None:
            return await self._database.execute(statement)
        async with self._database.write(lock=ENDPOINTS_LOCK) as connection:
            rows = (await connection.execute(sa.select(ENDPOINTS))).all()
            check([_stored(row).endpoint for row in rows])
            return (await connection.execute(statement)).rowcount

    async def note(self, ids: Collection[str]) -> None:
        """Keep in mind, for good, that these have a row."""
        if ids:
            rows = [{"id": id} for id in ids]
            insert = self._database.insert(NOTED_ENDPOINTS).values(rows)
            await self._database.execute(insert.on_conflict_do_nothing())

    async def noted(self) -> set[str]:
        """Those that had a row once, as far as this database knows."""
        return {row.id for row in await self._database.fetch(sa.select(NOTED_ENDPOINTS))}


def _at(stored: StoredEndpoint) -> sa.ColumnElement[bool]:
    """The row, if it still has the revision."""
    return (ENDPOINTS.c.id == stored.endpoint.id) & (stored.revision == _REVISION)


def _row(stored: StoredEndpoint) -> dict[str, Any]:
    return {name: getattr(stored.endpoint, name) for name in _MEMBERS} | {
        "revision": stored.revision,
        "given": sorted(stored.given),
        "applied": stored.applied,
    }


def _stored(row: sa.Row[*tuple[Any, ...]]) -> StoredEndpoint:
    """Rows of older versions lack what was added since."""
    members = {name: getattr(row, name) for name in _MEMBERS}
    checkpoints = members["checkpoints"]
    members["checkpoints"] = None if checkpoints is None else tuple(checkpoints)
    members["draining"] = bool(members["draining"])
    return StoredEndpoint(
        endpoint=Endpoint(**members),
        revision=row.revision or 1,
        given=frozenset(row.given or ()),
        applied=row.applied,
    )
