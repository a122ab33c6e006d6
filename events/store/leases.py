"""Leases: rows that say which process does a task at the moment."""

from __future__ import annotations

import sqlalchemy as sa

from events.store.database import Database
from events.store.tables import LEASES


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
