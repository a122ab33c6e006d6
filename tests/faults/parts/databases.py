"""Faults of the database: it is locked, stopped, or silent."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from contextlib import closing
from functools import partial

from tests.faults.parts.parts import Parts, undone_after


async def lock(parts: Parts, lasts_s: float) -> bool:
    if parts.postgres is None:
        await asyncio.to_thread(_lock_sqlite, parts.database_url, lasts_s)
        return True
    from asyncpg import connect

    connection = await connect(parts.database_url.replace("+asyncpg", ""))
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE jobs, leases IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(lasts_s)
    finally:
        await connection.close()
    return True


def _lock_sqlite(database_url: str, lasts_s: float) -> None:
    path = database_url.removeprefix("sqlite+aiosqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None, timeout=10)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(lasts_s)
        connection.execute("ROLLBACK")


async def lose(parts: Parts, lasts_s: float) -> bool:
    """Kill the server and start it again; a database file is locked instead."""
    postgres = parts.postgres
    if postgres is None:
        return await lock(parts, lasts_s)
    await asyncio.to_thread(postgres.stop)
    return await undone_after(lasts_s, postgres.start)


async def freeze(parts: Parts, lasts_s: float) -> bool:
    """Freeze the server, so that it does not answer and no connection to it ends."""
    postgres = parts.postgres
    if postgres is None:
        return False
    postgres.signal(signal.SIGSTOP)
    return await undone_after(lasts_s, partial(postgres.signal, signal.SIGCONT))
