"""Small files that programs of an owner store and read, such as workflows and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import Database, lock_of
from events.store.records import FileKind, FileOutcome, UserFile
from events.store.tables import USER_FILES

_SHOWN = tuple(USER_FILES.c[each.name] for each in fields(UserFile))


class UserFiles:
    """Reads and writes the files of owners. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database, *, max_files: int, max_bytes: int) -> None:
        """`max_files` is the largest number of files of each kind of an owner.

        `max_bytes` is the largest size of all files of an owner, including their names.
        """
        self._database = database
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._put = database.upsert(USER_FILES, keep=[USER_FILES.c.created_at])

    async def all(self, owner: str, kind: FileKind) -> list[UserFile]:
        """Return the owner's files of this kind, sorted by name, without their contents."""
        query = sa.select(*_SHOWN).where(_are(owner, kind)).order_by(USER_FILES.c.name)
        return [UserFile(**row._mapping) for row in await self._database.fetch(query)]

    async def find(self, owner: str, kind: FileKind, name: str) -> UserFile | None:
        rows = await self._database.fetch(sa.select(*_SHOWN).where(_is(owner, kind, name)))
        return UserFile(**rows[0]._mapping) if rows else None

    async def contents(self, owner: str, kind: FileKind) -> dict[str, bytes]:
        """Return the contents of all files of this kind, by name."""
        query = sa.select(USER_FILES.c.name, USER_FILES.c.content).where(_are(owner, kind))
        return {row.name: row.content for row in await self._database.fetch(query)}

    async def content(self, owner: str, kind: FileKind, name: str) -> bytes | None:
        query = sa.select(USER_FILES.c.content).where(_is(owner, kind, name))
        rows = await self._database.fetch(query)
        return rows[0].content if rows else None

    async def put(
        self,
        owner: str,
        kind: FileKind,
        contents: Mapping[str, bytes],
        *,
        at: datetime,
        replaces: bool = True,
        max_bytes: int | None = None,
    ) -> FileOutcome:
        """Store all files or none. `max_bytes` limits the owner's files of this kind."""
        async with self._database.write(lock=_lock_of(owner)) as connection:
            names = list(contents)
            if not replaces and await _any(connection, owner, kind, names):
                return FileOutcome.EXISTS
            if not await self._fit(connection, owner, kind, contents, max_bytes=max_bytes):
                return FileOutcome.FULL
            common = {"owner": owner, "kind": kind.value, "created_at": at, "changed_at": at}
            rows = [
                {**common, "name": name, "content": content, "size_bytes": len(content)}
                for name, content in contents.items()
            ]
            if rows:
                await connection.execute(self._put, rows)
        return FileOutcome.DONE

    async def rename(
        self, owner: str, kind: FileKind, name: str, to: str, *, at: datetime, replaces: bool
    ) -> FileOutcome:
        async with self._database.write(lock=_lock_of(owner)) as connection:
            if not await _any(connection, owner, kind, [name]):
                return FileOutcome.MISSING
            if name == to:
                return FileOutcome.DONE
            if await _any(connection, owner, kind, [to]):
                if not replaces:
                    return FileOutcome.EXISTS
                await connection.execute(sa.delete(USER_FILES).where(_is(owner, kind, to)))
            mine = _is(owner, kind, name)
            values = {"name": to, "changed_at": at}
            await connection.execute(sa.update(USER_FILES).where(mine).values(values))
        return FileOutcome.DONE

    async def remove(self, owner: str, kind: FileKind, name: str) -> bool:
        """Remove a file. Return False if the file does not exist."""
        remove = sa.delete(USER_FILES).where(_is(owner, kind, name))
        return await self._database.execute(remove) > 0

    async def _fit(
        self,
        connection: AsyncConnection,
        owner: str,
        kind: FileKind,
        contents: Mapping[str, bytes],
        *,
        max_bytes: int | None,
    ) -> bool:
        """Return whether the files fit within the limits, in place of files with the same names."""
        files = USER_FILES.c
        is_kind, is_same = files.kind == kind.value, files.name.in_(list(contents))
        size = files.size_bytes + sa.func.length(files.name)
        query = sa.select(
            sa.func.coalesce(sa.func.sum(sa.case((is_kind, 1), else_=0)), 0),
            sa.func.coalesce(sa.func.sum(sa.case((is_kind, size), else_=0)), 0),
            sa.func.coalesce(sa.func.sum(size), 0),
        ).where(files.owner == owner, ~(is_kind & is_same))
        count, of_kind, of_owner = (await connection.execute(query)).one()
        more = sum(len(name) + len(content) for name, content in contents.items())
        return (
            count + len(contents) <= self._max_files
            and of_owner + more <= self._max_bytes
            and (max_bytes is None or of_kind + more <= max_bytes)
        )


def _lock_of(owner: str) -> int:
    """Return the lock of changes of one owner's files."""
    return lock_of(f"user files of {owner}")


def _are(owner: str, kind: FileKind) -> sa.ColumnElement[bool]:
    return (USER_FILES.c.owner == owner) & (USER_FILES.c.kind == kind.value)


def _is(owner: str, kind: FileKind, name: str) -> sa.ColumnElement[bool]:
    return _are(owner, kind) & (USER_FILES.c.name == name)


async def _any(connection: AsyncConnection, owner: str, kind: FileKind, names: list[str]) -> bool:
    query = sa.select(USER_FILES.c.name).where(_are(owner, kind), USER_FILES.c.name.in_(names))
    return (await connection.execute(query.limit(1))).first() is not None
