"""A rebuild of an installation's read model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from events.store.table_rebuild import Rebuild
from operations.rebuilding import Rebuilding
from tests.support.operations.installation import NOW, Installation


async def nothing() -> None:
    pass


async def rebuild(
    installation: Installation,
    on_batch: Callable[[], Awaitable[None]] = nothing,
    *,
    tables: Rebuild | None = None,
) -> Rebuilding:
    rebuilding = Rebuilding(
        installation.stores,
        tables or Rebuild(installation.database, now=lambda: NOW),
        on_batch=on_batch,
    )
    await rebuilding.run()
    return rebuilding
