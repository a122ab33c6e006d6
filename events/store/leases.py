"""Leases: database rows that record which process does a task now."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import sqlalchemy as sa

from events.errors import DatabaseUnavailable
from events.ids import new_id
from events.store.database import Database
from events.store.tables import LEASES

T = TypeVar("T")


class Leases:
    """Leases of limited time, so that usually only one process does a task.

    Two processes may overlap, so correctness must not depend on the lease.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def acquire(self, name: str, holder: str, *, ttl_s: float) -> bool:
        """Acquire or renew a lease for `ttl_s` seconds. Return False if another holder has it."""
        now_s = self._database.clock_s
        row = {"name": name, "holder": holder, "expires_at_s": now_s + ttl_s}
        taken = await self._database.execute(
            self._database.insert(LEASES)
            .values(row)
            .on_conflict_do_update(
                index_elements=[LEASES.c.name],
                set_=row,
                where=(LEASES.c.holder == holder)
                | (LEASES.c.expires_at_s <= now_s)
                # The lease is older than a change of the clock to an earlier time.
                | (LEASES.c.expires_at_s > now_s + 2 * ttl_s),
            )
        )
        return taken > 0

    async def release(self, name: str, holder: str) -> None:
        """Release a lease if this holder has it."""
        mine = (LEASES.c.name == name) & (LEASES.c.holder == holder)
        await self._database.execute(sa.delete(LEASES).where(mine))


def lease_holder() -> str:
    """Return a new unique name for this process as the holder of leases."""
    return f"{socket.gethostname()}:{os.getpid()}:{new_id()}"


GIVEN_UP = "given up"
"""The name of a task whose query was given up. The driver may still wait for the database."""


async def answered(question: Coroutine[Any, Any, T], *, within_s: float) -> T:
    """Return the result of a query. Raises DatabaseUnavailable after `within_s` seconds.

    A database may hang for longer than the holder of a lease can wait. The cancellation of the
    query is not awaited, because the driver may also need a long time for it.
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
    asking.add_done_callback(_ignore_error)
    raise DatabaseUnavailable("The database did not answer in time.")


def _ignore_error(given_up: asyncio.Task[Any]) -> None:
    """Retrieve the exception of the task, so that asyncio does not log it."""
    if not given_up.cancelled():
        given_up.exception()
