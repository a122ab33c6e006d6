"""API keys and their options. Options apply to later requests with the same key.

The rows cannot be rebuilt from the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from events.store.database import Database
from events.store.records import ApiKey, KeyLimits, Scope
from events.store.tables import API_KEYS, KEY_OPTIONS
from events.types import Priority


class ApiKeys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, key: ApiKey) -> None:
        await self._database.execute(self._database.insert(API_KEYS).values(_row(key)))

    async def get(self, key_id: str) -> ApiKey | None:
        rows = await self._database.fetch(sa.select(API_KEYS).where(API_KEYS.c.id == key_id))
        return _api_key(rows[0]) if rows else None

    async def all(
        self, *, owner: str | None = None, limit: int | None = None, after: str | None = None
    ) -> list[ApiKey]:
        """Return the keys, oldest first. `after` is the id of the last key of the previous page."""
        query = sa.select(API_KEYS).order_by(API_KEYS.c.created_at, API_KEYS.c.id).limit(limit)
        if owner is not None:
            query = query.where(API_KEYS.c.owner == owner)
        if after is not None:
            seen = API_KEYS.alias("seen")
            last = sa.select(seen.c.created_at, seen.c.id).where(seen.c.id == after)
            order = sa.tuple_(API_KEYS.c.created_at, API_KEYS.c.id)
            query = query.where(order > last.scalar_subquery())
        return [_api_key(row) for row in await self._database.fetch(query)]

    async def live_ids(self, owner: str, *, now: datetime, most: int) -> list[str]:
        """Return the ids of the owner's keys that are neither revoked nor expired, newest first."""
        stays = API_KEYS.c.expires_at.is_(None) | (API_KEYS.c.expires_at > now)
        query = sa.select(API_KEYS.c.id).where(
            API_KEYS.c.owner == owner, API_KEYS.c.revoked_at.is_(None), stays
        )
        newest_first = query.order_by(API_KEYS.c.created_at.desc(), API_KEYS.c.id)
        return [row.id for row in await self._database.fetch(newest_first.limit(most))]

    async def change(self, key_id: str, **columns: Any) -> ApiKey | None:
        """Change these columns. Return the changed key, or None if the key does not exist."""
        change = sa.update(API_KEYS).where(API_KEYS.c.id == key_id).values(_joined(columns))
        async with self._database.write() as connection:
            row = (await connection.execute(change.returning(*API_KEYS.columns))).first()
        return None if row is None else _api_key(row)

    async def rotate(self, old: ApiKey, new: ApiKey, *, old_ends_at: datetime) -> bool:
        """Replace `old` by `new`. Return False if `old` has changed since it was read."""
        unchanged = (API_KEYS.c[name].is_not_distinct_from(v) for name, v in _row(old).items())
        end = sa.update(API_KEYS).where(*unchanged)
        async with self._database.write() as connection:
            ended = await connection.execute(
                end.values(
                    replaced_by=new.id, expires_at=min(old.expires_at or old_ends_at, old_ends_at)
                )
            )
            if ended.rowcount == 0:
                return False
            await connection.execute(self._database.insert(API_KEYS).values(_row(new)))
        return True

    async def revoke(self, key_id: str, at: datetime) -> bool:
        """Revoke a key. Return False if the key does not exist or is already revoked."""
        live = (API_KEYS.c.id == key_id) & API_KEYS.c.revoked_at.is_(None)
        revoke = sa.update(API_KEYS).where(live).values(revoked_at=at)
        return await self._database.execute(revoke) > 0


_LISTS = {"scopes", "endpoints", "callback_hosts"}
_LIMITS = {field.name for field in fields(KeyLimits)}


def _row(key: ApiKey) -> dict[str, Any]:
    row = asdict(key)
    return _joined(row | row.pop("limits"))


def _joined(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with lists as texts. Scopes, which are a set, are sorted."""
    if "scopes" in columns:
        columns = {**columns, "scopes": sorted(columns["scopes"])}
    return {
        name: " ".join(value) if name in _LISTS and value is not None else value
        for name, value in columns.items()
    }


def _api_key(row: sa.Row[Any]) -> ApiKey:
    columns: dict[str, Any] = {
        name: tuple(value.split()) if name in _LISTS and value is not None else value
        for name, value in row._mapping.items()
    }
    limits = KeyLimits(**{name: columns.pop(name) for name in _LIMITS})
    if limits.priority is not None:
        limits = replace(limits, priority=Priority(limits.priority))
    scopes = frozenset(map(Scope, columns.pop("scopes")))
    return ApiKey(**columns, scopes=scopes, limits=limits)


class KeyOptions:
    """Reads and writes the options of keys. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._put = database.upsert(KEY_OPTIONS)
        self._options = database.point_read(KEY_OPTIONS.c.options, by=KEY_OPTIONS.c.key_id)

    async def options_of(self, key_id: str) -> dict[str, Any]:
        """Return the options of the key; empty if no options were set."""
        text = await self._options(key_id)
        options: dict[str, Any] = {} if text is None else json.loads(text)
        return options

    async def put(self, key_id: str, options: Mapping[str, Any], at: datetime) -> None:
        """Replace all options of the key."""
        row = {"key_id": key_id, "options": json.dumps(options), "changed_at": at}
        async with self._database.write() as connection:
            await connection.execute(self._put, [row])
