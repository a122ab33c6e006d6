"""Uploaded input images, by owner and name. The rows cannot be rebuilt from the log.

A name is a label. A new upload with the same name moves the label to the new file, or gets another
name. An old file stays while an accepted job may need it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from itertools import count
from pathlib import PurePosixPath

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import UPLOAD_NAMES_LOCK, Database
from events.store.records import Upload
from events.store.tables import UPLOADS

_LONGEST_NAME, _LONGEST_SUFFIX = 240, 16
"""The lengths in characters. A longer name is cut before a number is added, and a longer suffix
counts as a part of the name.
"""
_LEAST_BYTES = 64 * 1024
"""The smallest size in bytes that is counted for a file, which limits the number of rows."""


class Uploads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, upload: Upload, *, max_bytes: int = 0) -> int | None:
        """Add a file. If an older file has the same name, the name is moved to the new file.

        If the owner's files would have more than `max_bytes`, nothing is added, and the result is
        their present size in bytes. A `max_bytes` of 0 means no limit. On Postgres, files that are
        added at the same moment may together exceed the limit.
        """
        async with self._database.write() as connection:
            if (used_bytes := await _without_room(connection, upload, max_bytes)) is not None:
                return used_bytes
            mine = _labelled(upload.owner, [upload.name])
            replace = sa.update(UPLOADS).where(mine).values(replaced_at=upload.created_at)
            await connection.execute(replace)
            await connection.execute(self._database.insert(UPLOADS).values(asdict(upload)))
        return None

    async def add_beside(self, upload: Upload, *, max_bytes: int = 0) -> Upload | int:
        """Add a file, as `cat (1).png` and so on if other files have its name.

        If one of these names already stands for the same file, nothing is added. Returns the row
        that has the file. For `max_bytes`, and for the size that is returned instead, see `add`.
        """
        suffix = PurePosixPath(upload.name).suffix
        if len(suffix) > _LONGEST_SUFFIX:
            suffix = ""
        stem = upload.name.removesuffix(suffix)[: _LONGEST_NAME - len(suffix)]
        alike = UPLOADS.c.name.startswith(f"{stem} (", autoescape=True)
        mine = _labelled(upload.owner) & ((UPLOADS.c.name == upload.name) | alike)
        query = sa.select(UPLOADS).where(mine).order_by(UPLOADS.c.id)
        async with self._database.write(lock=UPLOAD_NAMES_LOCK) as connection:
            rows = {row.name: row for row in await connection.execute(query)}
            name = upload.name
            for number in count(1):
                if (known := rows.get(name)) is None:
                    break
                if known.digest == upload.digest:
                    found = sa.update(UPLOADS).where(UPLOADS.c.id == known.id)
                    await connection.execute(found.values(used_at=upload.used_at))
                    return replace(Upload(**known._mapping), used_at=upload.used_at)
                name = f"{stem} ({number}){suffix}"
            if (used_bytes := await _without_room(connection, upload, max_bytes)) is not None:
                return used_bytes
            named = replace(upload, name=name)
            await connection.execute(self._database.insert(UPLOADS).values(asdict(named)))
        return named

    async def use(self, owner: str, names: Collection[str], at: datetime) -> dict[str, Upload]:
        """Record that these files are used. Return the files by name, without unknown names."""
        if not names:
            return {}
        mine = _labelled(owner, names)
        async with self._database.write() as connection:
            await connection.execute(sa.update(UPLOADS).where(mine).values(used_at=at))
            # The rows are ordered by time. If two concurrent uploads have the same name, the
            # dictionary keeps the newer upload.
            rows = await connection.execute(sa.select(UPLOADS).where(mine).order_by(UPLOADS.c.id))
            return {row.name: Upload(**row._mapping) for row in rows}

    async def find(self, owner: str, *names: str) -> Upload | None:
        """Return the owner's newest file with one of the names. Raises DatabaseUnavailable."""
        query = sa.select(UPLOADS).where(_labelled(owner, names)).order_by(UPLOADS.c.id)
        rows = await self._database.fetch(query)
        return Upload(**rows[-1]._mapping) if rows else None

    async def of_ids(self, owner: str, ids: Collection[str]) -> dict[str, Upload]:
        """Return the owner's files with these ids, by id, except files without their name.

        Raises DatabaseUnavailable.
        """
        query = sa.select(UPLOADS).where(_labelled(owner), UPLOADS.c.id.in_(ids))
        return {row.id: Upload(**row._mapping) for row in await self._database.fetch(query)}

    async def page(self, owner: str, *, limit: int, before: str | None = None) -> list[Upload]:
        """Return the owner's files, newest first. `before` is the last id of the previous page."""
        query = sa.select(UPLOADS).where(_labelled(owner))
        if before is not None:
            query = query.where(UPLOADS.c.id < before)
        rows = await self._database.fetch(query.order_by(UPLOADS.c.id.desc()).limit(limit))
        return [Upload(**row._mapping) for row in rows]

    async def remove(self, owner: str, name: str, at: datetime) -> bool:
        """Remove the name of a file. Return False if no file of the owner has the name.

        The file stays while an accepted job may need it.
        """
        remove = sa.update(UPLOADS).where(_labelled(owner, [name])).values(replaced_at=at)
        return await self._database.execute(remove) > 0

    async def remove_all(self, owner: str, prefix: str, at: datetime) -> None:
        """Remove all names of the owner that begin with `prefix` from their files."""
        begins = UPLOADS.c.name.startswith(prefix, autoescape=True)
        mine = _labelled(owner) & begins
        await self._database.execute(sa.update(UPLOADS).where(mine).values(replaced_at=at))

    async def forget(
        self, *, unused_since: datetime | None, replaced_before: datetime, limit: int
    ) -> list[str]:
        """Delete up to `limit` rows of unneeded files. Return the keys of the files, for deletion.

        These files were last used before `unused_since`, or lost their name before
        `replaced_before`.
        """
        due = UPLOADS.c.replaced_at < replaced_before
        if unused_since is not None:
            due |= UPLOADS.c.used_at < unused_since
        async with self._database.write() as connection:
            some = sa.select(UPLOADS.c.id).where(due).order_by(UPLOADS.c.id).limit(limit)
            gone = sa.delete(UPLOADS).where(UPLOADS.c.id.in_(some), due)
            rows = await connection.execute(gone.returning(UPLOADS.c.storage_key))
            return list(rows.scalars())

    async def known(self, keys: Sequence[str]) -> set[str]:
        """Return the storage keys that have a row."""
        query = sa.select(UPLOADS.c.storage_key).where(UPLOADS.c.storage_key.in_(keys))
        return {row.storage_key for row in await self._database.fetch(query)}


async def _without_room(connection: AsyncConnection, upload: Upload, max_bytes: int) -> int | None:
    """Return the size of the owner's files if another one would exceed the limit, else None."""
    if not max_bytes:
        return None
    used_bytes = int((await connection.execute(upload_bytes(upload.owner))).scalar_one())
    return used_bytes if used_bytes + max(upload.size_bytes, _LEAST_BYTES) > max_bytes else None


def _labelled(owner: str, names: Collection[str] | None = None) -> sa.ColumnElement[bool]:
    """Match the rows of the owner's files that have their name."""
    mine = (UPLOADS.c.owner == owner) & UPLOADS.c.replaced_at.is_(None)
    return mine if names is None else mine & UPLOADS.c.name.in_(names)


def upload_bytes(owner: str) -> sa.Select[int]:
    """Return the query for the size of an owner's files, including files without their name."""
    size = sa.case((UPLOADS.c.size_bytes > _LEAST_BYTES, UPLOADS.c.size_bytes), else_=_LEAST_BYTES)
    total = sa.func.coalesce(sa.func.sum(size), 0)
    return sa.select(total).where(UPLOADS.c.owner == owner)
