"""Named workflows: graphs that owners store once and run by name.

Every change of the content of a workflow is a new version. A version never changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from events.store.database import Database, lock_of
from events.store.records import EVERY_OWNER, WorkflowOutcome, WorkflowVersion
from events.store.tables import WORKFLOWS
from settings.constant import constant

MAX_NAMES = constant("MAX_WORKFLOWS", 200)
"""The largest number of workflows of an owner."""
MAX_VERSIONS = constant("MAX_WORKFLOW_VERSIONS", 100)
"""The largest number of versions of a workflow."""
MAX_BYTES = constant("MAX_WORKFLOWS_BYTES", 64 * 1024**2)
"""The largest total size in bytes of all versions of an owner."""

_SHOWN = tuple(WORKFLOWS.c[each.name] for each in fields(WorkflowVersion))


class Workflows:
    """Reads and writes named workflows. Every method raises DatabaseUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self, owner: str) -> list[WorkflowVersion]:
        """Return every version that the owner may run, sorted by name and version.

        A workflow of the owner hides a workflow of all owners with the same name.
        """
        found = await self._versions(WORKFLOWS.c.owner.in_((owner, EVERY_OWNER)))
        own = {each.name for each in found if each.owner == owner}
        return [each for each in found if each.owner == owner or each.name not in own]

    async def of_name(self, owner: str, name: str) -> list[WorkflowVersion]:
        """Return the versions of the owner's workflow, oldest first; empty if there is none."""
        return await self._versions(_named(owner, name))

    async def contents(self, versions: Collection[WorkflowVersion]) -> dict[WorkflowVersion, str]:
        """Return the contents of these versions as JSON. A version that was removed is left out."""
        columns = (WORKFLOWS.c.owner, WORKFLOWS.c.name, WORKFLOWS.c.version)
        wanted = {(each.owner, each.name, each.version): each for each in versions}
        query = sa.select(*columns, WORKFLOWS.c.content)
        rows = await self._database.fetch(query.where(sa.tuple_(*columns).in_(list(wanted))))
        return {wanted[row.owner, row.name, row.version]: row.content for row in rows}

    async def add(
        self, owner: str, name: str, content: str, *, after: int, at: datetime
    ) -> WorkflowOutcome:
        """Store version `after + 1` if `after` is still the newest version.

        With 0, a new workflow is added.
        """
        async with self._database.write(lock=_lock_of(owner)) as connection:
            newest = (
                await connection.execute(
                    sa.select(sa.func.max(WORKFLOWS.c.version)).where(_named(owner, name))
                )
            ).scalar_one() or 0
            if newest != after:
                if not newest:
                    return WorkflowOutcome.MISSING
                return WorkflowOutcome.CHANGED if after else WorkflowOutcome.EXISTS
            size_bytes = len(content.encode())
            if not await _has_room(connection, owner, name, size_bytes):
                return WorkflowOutcome.FULL
            row = {
                "owner": owner,
                "name": name,
                "version": after + 1,
                "content": content,
                "size_bytes": size_bytes,
                "created_at": at,
                "is_marked": False,
            }
            await connection.execute(sa.insert(WORKFLOWS).values(row))
        return WorkflowOutcome.DONE

    async def mark(self, owner: str, name: str, version: int | None) -> bool:
        """Mark only this version; None marks none. Return False if the version does not exist."""
        async with self._database.write(lock=_lock_of(owner)) as connection:
            is_version = WORKFLOWS.c.version == version
            if version is not None:
                query = sa.select(WORKFLOWS.c.version).where(_named(owner, name) & is_version)
                if (await connection.execute(query)).first() is None:
                    return False
            marked = sa.false() if version is None else is_version
            change = sa.update(WORKFLOWS).where(_named(owner, name)).values(is_marked=marked)
            await connection.execute(change)
        return True

    async def remove(self, owner: str, name: str) -> bool:
        """Remove all versions. Return False if the workflow does not exist."""
        return await self._database.execute(sa.delete(WORKFLOWS).where(_named(owner, name))) > 0

    async def _versions(self, condition: sa.ColumnElement[bool]) -> list[WorkflowVersion]:
        query = sa.select(*_SHOWN).where(condition)
        ordered = query.order_by(WORKFLOWS.c.name, WORKFLOWS.c.owner, WORKFLOWS.c.version)
        return [WorkflowVersion(**row._mapping) for row in await self._database.fetch(ordered)]


async def _has_room(connection: AsyncConnection, owner: str, name: str, size_bytes: int) -> bool:
    """Return whether the owner may store one more version of this size in bytes."""
    columns = WORKFLOWS.c
    is_name = columns.name == name
    query = sa.select(
        sa.func.count(sa.distinct(sa.case((~is_name, columns.name)))),
        sa.func.coalesce(sa.func.sum(sa.case((is_name, 1), else_=0)), 0),
        sa.func.coalesce(sa.func.sum(columns.size_bytes), 0),
    ).where(columns.owner == owner)
    others, versions, used_bytes = (await connection.execute(query)).one()
    has_room = others < MAX_NAMES and versions < MAX_VERSIONS
    return bool(has_room and used_bytes + size_bytes <= MAX_BYTES)


def _lock_of(owner: str) -> int:
    """Return the key of the lock that separates changes of one owner's workflows."""
    return lock_of(f"workflows of {owner}")


def _named(owner: str, name: str) -> sa.ColumnElement[bool]:
    return (WORKFLOWS.c.owner == owner) & (WORKFLOWS.c.name == name)
