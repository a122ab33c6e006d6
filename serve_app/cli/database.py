"""Opens the database for a command, whether the service runs or not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from events.store.database import Database
from events.store.keys import ApiKeys
from settings.stores import StoreSettings

T = TypeVar("T")


async def with_keys(settings: StoreSettings, use: Callable[[ApiKeys], Awaitable[T]]) -> T:
    """What `use` returns. Raises DatabaseUnavailable."""
    settings.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = Database(settings.effective_database_url)
    try:
        await database.prepare()
        return await use(ApiKeys(database))
    finally:
        await database.close()
