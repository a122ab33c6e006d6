"""A database in a file, and what is in its tables."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from events.store.database import Database


@asynccontextmanager
async def database_in(folder: Path) -> AsyncGenerator[Database]:
    """A SQLite database with its tables, in a file of `folder`."""
    database = Database(f"sqlite+aiosqlite:///{folder / 'darkroom.sqlite3'}")
    await database.prepare()
    yield database
    await database.close()


async def stored_images(database: Database) -> list[tuple[Any, ...]]:
    """The rows of all images: job, key, size in bytes, digest and position of the event."""
    async with database.write() as connection:
        rows = await connection.exec_driver_sql(
            "SELECT job_id, storage_key, size_bytes, digest, position FROM images"
            ' ORDER BY job_id, "index"'
        )
        return [tuple(row) for row in rows]
