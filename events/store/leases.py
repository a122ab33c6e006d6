"""Leases: rows that say which process does a task at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

import sqlalchemy as sa

from events.errors import DatabaseUnavailable
from events.store.database import Database
from events.store.tables import LEASES

T = TypeVar("T")


class Leases:
    """Short leases, so that usually one process does a task.

    Two may overlap; correctness does not depend on it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> bool:
        """Take or renew it for `ttl_s` seconds from now; False while another holder has it."""
        now_s = self._database.clock_s
        row = {"name": name, "holder": holder, "expires_at_s": now_s + ttl_s}
        taken = await self._database.execute(
            self._database.insert(LEASES)
            .values(row)
            .on_conflict_do_update(
                index_elements=[LEASES.c.name],
                set_=row,
                where=(LEASES.c.holder == holder) | (LEASES.c.expires_at_s <= now_s),
            )
        )
        return taken > 0

    async def renew(self, names: Collection[str], holder: str, *, ttl_s: float) -> set[str]:
        """Renew those of them that are the holder's, for `ttl_s` seconds from now: which these are.

        One statement renews them all. A lease that ran out is still the holder's until another
        takes it.
        """
        mine = LEASES.c.name.in_(names) & (LEASES.c.holder == holder)
        until = {"expires_at_s": self._database.clock_s + ttl_s}
        renewal = sa.update(LEASES).where(mine).values(until).returning(LEASES.c.name)
        async with self._database.write() as connection:
            return set((await connection.execute(renewal)).scalars())

    async def release(self, name: str, holder: str) -> None:
        """Give it up; nothing happens if another holder has it."""
        mine = (LEASES.c.name == name) & (LEASES.c.holder == holder)
        await self._database.execute(sa.delete(LEASES).where(mine))

    async def held(self, prefix: str) -> int:
        """How many leases whose names begin with `prefix` have not run out."""
        begins = LEASES.c.name.startswith(prefix, autoescape=True)
        lasting = LEASES.c.expires_at_s > self._database.clock_s
        query = sa.select(sa.func.count()).select_from(LEASES).where(begins & lasting)
        return int((await self._database.fetch(query))[0][0])


GIVEN_UP = "given up"
"""Name of the task of a question that nobody waits for any more, but its driver does."""


async def answered(question: Coroutine[Any, Any, T], *, within_s: float) -> T:
    """What the database answers to it. Raises DatabaseUnavailable.

    Who holds a lease cannot wait for as long as the database may hang. A question that is given up
    is not waited for: the driver may take as long to give it up, too.
    """
    asking = asyncio.create_task(question)
    try:
        await asyncio.wait({asking}, timeout=within_s)
    except asyncio.CancelledError:
        asking.cancel()
        await asyncio.wait({asking})
        raise
    if asking.done():
        return asking.result()
    asking.cancel()
    asking.set_name(GIVEN_UP)
    asking.add_done_callback(_look_at)
    raise DatabaseUnavailable("The database did not answer in time.")


def _look_at(given_up: asyncio.Task[Any]) -> None:
    """An error that nobody looks at would be logged."""
    if not given_up.cancelled():
        given_up.exception()
