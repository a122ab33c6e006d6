"""Uploaded input images, by owner and name. The rows cannot be rebuilt from the log.

A name is a label. A new upload with the same name moves the label to the new file, or gets another
name. An old file stays while an accepted job may need it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import PurePosixPath

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import Database, lock_of
from events.store.records import Upload
from events.store.tables import UPLOADS

_LONGEST_NAME, _LONGEST_SUFFIX = 240, 16
"""The lengths in characters. A longer name is cut before a number is added, and a longer suffix
counts as a part of the name.
"""
_MOST_NUMBERS = 2**32
"""A number that no file has."""
_TRIED_AT_ONCE = 32
_LEAST_BYTES = 64 * 1024
"""The smallest size in bytes that is counted for a file, which limits the number of rows."""


class Uploads:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, upload: Upload, *, max_bytes: int = 0) -> int | None:
        """Add a file. If an older file has the same name, the name is moved to the new file.

        If the owner's files would have more than `max_bytes`, nothing is added, and the result is
        their present size in bytes. A `max_bytes` of 0 means no limit.
        """
        async with self._database.write(lock=_lock_of(upload.owner)) as connection:
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
        stem, suffix = _stem_and_suffix(upload.name)
        numbered = re.compile(rf"{re.escape(stem)} \([0-9]+\){re.escape(suffix)}")
        same = _labelled(upload.owner) & (UPLOADS.c.digest == upload.digest)
        query = sa.select(UPLOADS).where(same).order_by(UPLOADS.c.id)
        async with self._database.write(lock=_lock_of(upload.owner)) as connection:
            for known in await connection.execute(query):
                if known.name == upload.name or numbered.fullmatch(known.name):
                    found = sa.update(UPLOADS).where(UPLOADS.c.id == known.id)
                    await connection.execute(found.values(used_at=upload.used_at))
                    return replace(Upload(**known._mapping), used_at=upload.used_at)
            if (used_bytes := await _without_room(connection, upload, max_bytes)) is not None:
                return used_bytes
            named = replace(upload, name=await _free_name(connection, upload))
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


async def _free_name(connection: AsyncConnection, upload: Upload) -> str:
    """Return the name of the file, or this name with a number, that no file of the owner has.

    The number is the lowest free one, unless files with lower numbers were removed. Each query
    tries several numbers, so a name of many files needs few queries.
    """
    stem, suffix = _stem_and_suffix(upload.name)

    def numbered(number: int) -> str:
        return f"{stem} ({number}){suffix}" if number else upload.name

    taken, free = -1, _MOST_NUMBERS
    tried = [2**power - 1 for power in range(_MOST_NUMBERS.bit_length())]
    while free - taken > 1:
        names = [numbered(number) for number in tried]
        query = sa.select(UPLOADS.c.name).where(_labelled(upload.owner, names))
        known = set((await connection.execute(query)).scalars())
        for number, name in zip(tried, names, strict=True):
            if name not in known:
                free = number
                break
            taken = number
        step = max(1, (free - taken) // _TRIED_AT_ONCE)
        tried = [*range(taken + step, free, step)]
    return numbered(free)


def _stem_and_suffix(name: str) -> tuple[str, str]:
    """Return the parts of a name between which a number is put."""
    suffix = PurePosixPath(name).suffix
    if len(suffix) > _LONGEST_SUFFIX:
        suffix = ""
    return name.removesuffix(suffix)[: _LONGEST_NAME - len(suffix)], suffix


def _lock_of(owner: str) -> int:
    """Return the lock of changes of one owner's files. It keeps sizes and names exact."""
    return lock_of(f"uploads of {owner}")


def _labelled(owner: str, names: Collection[str] | None = None) -> sa.ColumnElement[bool]:
    """Match the rows of the owner's files that have their name."""
    mine = (UPLOADS.c.owner == owner) & UPLOADS.c.replaced_at.is_(None)
    return mine if names is None else mine & UPLOADS.c.name.in_(names)


def upload_bytes(owner: str) -> sa.Select[int]:
    """Return the query for the size of an owner's files, including files without their name."""
    size = sa.case((UPLOADS.c.size_bytes > _LEAST_BYTES, UPLOADS.c.size_bytes), else_=_LEAST_BYTES)
    total = sa.func.coalesce(sa.func.sum(size), 0)
    return sa.select(total).where(UPLOADS.c.owner == owner)
