"""Uploaded input images, by owner and name: rows that no log can give back.

A name is a label. A new upload of the same name moves the label to the new file. The old file stays
for as long as an accepted job may need it, and so does a file whose name was removed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime

import sqlalchemy as sa

from events.store.database import Database
from events.store.records import Upload
from events.store.tables import UPLOADS

_LEAST_BYTES = 64 * 1024
"""What a small file counts for, so that the rows of an owner are few enough to be added up."""


class Uploads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, upload: Upload, *, max_bytes: int = 0) -> int | None:
        """Add a file; from now on its name stands for it.

        Nothing is added where the owner's files would take more than `max_bytes` (0: any number):
        then returns how many they take. On Postgres files that are added at the same moment do not
        see each other.
        """
        async with self._database.write() as connection:
            if max_bytes:
                used_bytes = (await connection.execute(upload_bytes(upload.owner))).scalar_one()
                if used_bytes + max(upload.size_bytes, _LEAST_BYTES) > max_bytes:
                    return int(used_bytes)
            mine = _labelled(upload.owner, [upload.name])
            replace = sa.update(UPLOADS).where(mine).values(replaced_at=upload.created_at)
            await connection.execute(replace)
            await connection.execute(self._database.insert(UPLOADS).values(asdict(upload)))
        return None

    async def use(self, owner: str, names: Collection[str], at: datetime) -> dict[str, Upload]:
        """Note these files as used; the files by name, without names that are unknown."""
        if not names:
            return {}
        mine = _labelled(owner, names)
        async with self._database.write() as connection:
            await connection.execute(sa.update(UPLOADS).where(mine).values(used_at=at))
            # The newest last: if two uploads of one name crossed, the dictionary keeps the newest.
            rows = await connection.execute(sa.select(UPLOADS).where(mine).order_by(UPLOADS.c.id))
            return {row.name: Upload(**row._mapping) for row in rows}

    async def find(self, owner: str, name: str) -> Upload | None:
        """The owner's newest file of that name. Raises DatabaseUnavailable."""
        query = sa.select(UPLOADS).where(_labelled(owner, [name])).order_by(UPLOADS.c.id)
        rows = await self._database.fetch(query)
        return Upload(**rows[-1]._mapping) if rows else None

    async def of_ids(self, owner: str, ids: Collection[str]) -> dict[str, Upload]:
        """Those of the owner's files whose names still stand for them, by id.

        Raises DatabaseUnavailable.
        """
        query = sa.select(UPLOADS).where(_labelled(owner), UPLOADS.c.id.in_(ids))
        return {row.id: Upload(**row._mapping) for row in await self._database.fetch(query)}

    async def page(self, owner: str, *, limit: int, before: str | None = None) -> list[Upload]:
        """The owner's files, newest first; `before`: the id of the last one already seen."""
        query = sa.select(UPLOADS).where(_labelled(owner))
        if before is not None:
            query = query.where(UPLOADS.c.id < before)
        rows = await self._database.fetch(query.order_by(UPLOADS.c.id.desc()).limit(limit))
        return [Upload(**row._mapping) for row in rows]

    async def remove(self, owner: str, name: str, at: datetime) -> bool:
        """Take a name off its file; False if the owner has no such name."""
        remove = sa.update(UPLOADS).where(_labelled(owner, [name])).values(replaced_at=at)
        return await self._database.execute(remove) > 0

    async def remove_all(self, owner: str, prefix: str, at: datetime) -> None:
        """Take all names of the owner's that begin so off their files."""
        begins = UPLOADS.c.name.startswith(prefix, autoescape=True)
        mine = _labelled(owner) & begins
        await self._database.execute(sa.update(UPLOADS).where(mine).values(replaced_at=at))

    async def forget(
        self, *, unused_since: datetime | None, replaced_before: datetime, limit: int
    ) -> list[str]:
        """Delete rows that nobody needs any more; the keys of their files, to be deleted."""
        due = UPLOADS.c.replaced_at < replaced_before
        if unused_since is not None:
            due |= UPLOADS.c.used_at < unused_since
        async with self._database.write() as connection:
            some = sa.select(UPLOADS.c.id).where(due).order_by(UPLOADS.c.id).limit(limit)
            gone = sa.delete(UPLOADS).where(UPLOADS.c.id.in_(some), due)
            rows = await connection.execute(gone.returning(UPLOADS.c.storage_key))
            return list(rows.scalars())

    async def known(self, keys: Sequence[str]) -> set[str]:
        """Those of the storage keys that have a row."""
        query = sa.select(UPLOADS.c.storage_key).where(UPLOADS.c.storage_key.in_(keys))
        return {row.storage_key for row in await self._database.fetch(query)}


def _labelled(owner: str, names: Collection[str] | None = None) -> sa.ColumnElement[bool]:
    """The rows of names that still stand for their file."""
    mine = (UPLOADS.c.owner == owner) & UPLOADS.c.replaced_at.is_(None)
    return mine if names is None else mine & UPLOADS.c.name.in_(names)


def upload_bytes(owner: str) -> sa.Select[int]:
    """What the owner's files take, those included that were replaced or removed and still stay."""
    size = sa.case((UPLOADS.c.size_bytes > _LEAST_BYTES, UPLOADS.c.size_bytes), else_=_LEAST_BYTES)
    total = sa.func.coalesce(sa.func.sum(size), 0)
    return sa.select(total).where(UPLOADS.c.owner == owner)
