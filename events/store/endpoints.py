"""The rows of endpoints, which cannot be rebuilt from the log."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, TypeAlias

import sqlalchemy as sa

from events.store.database import ENDPOINTS_LOCK, Database
from events.store.records import DEFAULT_ENDPOINT, Endpoint, StoredEndpoint
from events.store.tables import ENDPOINTS, NOTED_ENDPOINTS, OBJECT_INFOS

_MEMBERS = tuple(member.name for member in fields(Endpoint))
_TUPLES = (
    "checkpoints",
    "comfyui_args",
    "comfyui_required_nodes",
    "comfyui_allowed_nodes",
    "comfyui_denied_nodes",
)
"""The members that are lists in the database."""

Check: TypeAlias = Callable[[Collection[Endpoint]], None]
"""A function that is called with all endpoints before a write, and may refuse it by an error.

Checked writes do not overlap, so each check sees all earlier writes.
"""


class Endpoints:
    """Reads and writes the rows of endpoints. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Endpoint]:
        """Return all endpoints, sorted by id."""
        return [stored.endpoint for stored in await self.stored()]

    async def get(self, id: str) -> Endpoint | None:
        stored = await self.stored_one(id)
        return None if stored is None else stored.endpoint

    async def stored(self, *, owner: str | None = None) -> list[StoredEndpoint]:
        """Return the rows of one owner's endpoints, or of all endpoints, sorted by id."""
        query = sa.select(ENDPOINTS).order_by(ENDPOINTS.c.id)
        if owner is not None:
            query = query.where(ENDPOINTS.c.owner == owner)
        return [_stored(row) for row in await self._database.fetch(query)]

    async def stored_one(self, id: str) -> StoredEndpoint | None:
        rows = await self._database.fetch(sa.select(ENDPOINTS).where(ENDPOINTS.c.id == id))
        return _stored(rows[0]) if rows else None

    async def put(self, endpoint: Endpoint) -> None:
        """Add the endpoint, or replace the whole row with the same id."""
        row = _row(StoredEndpoint(endpoint=endpoint))
        await self._database.execute(self._database.upsert(ENDPOINTS).values(row))

    async def add_missing(self, endpoint: Endpoint) -> None:
        """Add the endpoint unless its id exists. Several processes may do so at the same time."""
        await self.add(StoredEndpoint(endpoint=endpoint))

    async def add(self, stored: StoredEndpoint, *, check: Check | None = None) -> bool:
        """Add an endpoint. Return False and change nothing if its id exists already.

        Raises the errors of `check`.
        """
        insert = self._database.insert(ENDPOINTS).values(_row(stored))
        return await self._write(insert.on_conflict_do_nothing(), check) > 0

    async def change(
        self, stored: StoredEndpoint, *, check: Check | None = None
    ) -> StoredEndpoint | None:
        """Replace the row if its revision is still `stored.revision`.

        Return the row with its next revision, or None if the revision has changed or the row was
        removed. Raises the errors of `check`.
        """
        changed = replace(stored, revision=stored.revision + 1)
        update = sa.update(ENDPOINTS).where(_at(stored)).values(_row(changed))
        return changed if await self._write(update, check) else None

    async def remove(self, stored: StoredEndpoint) -> bool:
        """Remove the row. Return False if it has changed or was removed since it was read."""
        async with self._database.write() as connection:
            removed = (await connection.execute(sa.delete(ENDPOINTS).where(_at(stored)))).rowcount
            if removed:
                is_its = OBJECT_INFOS.c.endpoint == stored.endpoint.id
                await connection.execute(sa.delete(OBJECT_INFOS).where(is_its))
            return removed > 0

    async def settle(self, configured: Collection[Endpoint]) -> None:
        """Add the endpoints of the settings, or update the members that were not set explicitly.

        An endpoint that earlier settings added, and that the settings no longer have, is drained.
        """
        for endpoint in configured:
            if not await self._settle(endpoint):
                await self.add_missing(endpoint)
        ids = {endpoint.id for endpoint in configured}
        for stored in await self.stored():
            if stored.endpoint.id not in ids and _comes_from_settings(stored):
                await self._settle(replace(stored.endpoint, draining=True))

    async def _settle(self, endpoint: Endpoint) -> bool:
        """Update an endpoint from the settings. Returns whether there is one with its id."""
        while (stored := await self.stored_one(endpoint.id)) is not None:
            given = {name: getattr(stored.endpoint, name) for name in stored.given}
            settled = replace(endpoint, **given)
            if settled == stored.endpoint or not _comes_from_settings(stored):
                return True
            if await self.change(replace(stored, endpoint=settled)) is not None:
                return True
        return False

    async def _write(self, statement: sa.UpdateBase, check: Check | None) -> int:
        if check is None:
            return await self._database.execute(statement)
        async with self._database.write(lock=ENDPOINTS_LOCK) as connection:
            rows = (await connection.execute(sa.select(ENDPOINTS))).all()
            check([_stored(row).endpoint for row in rows])
            return (await connection.execute(statement)).rowcount

    async def note(self, ids: Collection[str]) -> None:
        """Record permanently that endpoints with these ids existed."""
        if ids:
            rows = [{"id": id} for id in ids]
            insert = self._database.insert(NOTED_ENDPOINTS).values(rows)
            await self._database.execute(insert.on_conflict_do_nothing())

    async def noted(self) -> set[str]:
        """Return the ids of all endpoints that `note` has recorded in this database."""
        return {row.id for row in await self._database.fetch(sa.select(NOTED_ENDPOINTS))}


def _comes_from_settings(stored: StoredEndpoint) -> bool:
    """Return whether the settings created the endpoint.

    An administrator who creates an endpoint with ComfyUI always sets its member `engine`.
    """
    endpoint, given = stored.endpoint, stored.given
    is_comfyui = endpoint.engine == "comfyui" and given.isdisjoint({"engine", "comfyui_url"})
    return endpoint.id == DEFAULT_ENDPOINT or (is_comfyui and endpoint.ends_at is None)


def _at(stored: StoredEndpoint) -> sa.ColumnElement[bool]:
    return (ENDPOINTS.c.id == stored.endpoint.id) & (ENDPOINTS.c.revision == stored.revision)


def _row(stored: StoredEndpoint) -> dict[str, Any]:
    return {name: getattr(stored.endpoint, name) for name in _MEMBERS} | {
        "revision": stored.revision,
        "given": sorted(stored.given),
        "applied": stored.applied,
    }


def _stored(row: sa.Row[*tuple[Any, ...]]) -> StoredEndpoint:
    members = {name: getattr(row, name) for name in _MEMBERS}
    for name in _TUPLES:
        members[name] = None if members[name] is None else tuple(members[name])
    members["engine"] = members["engine"] or "darkroom"  # An earlier version wrote no engine.
    return StoredEndpoint(
        endpoint=Endpoint(**members),
        revision=row.revision,
        given=frozenset(row.given),
        applied=row.applied,
    )
