"""A rebuild of an installation's read model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from actors.archiving import open_archive
from events.store.maintenance.rebuild import Rebuild
from serve_app.operations.rebuilding import Rebuilding
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
        installation.places,
        tables or Rebuild(installation.database, now=lambda: NOW),
        writer=open_archive(installation.database, installation.images, now=lambda: NOW).writer,
        on_batch=on_batch,
        now=lambda: NOW,
    )
    await rebuilding.run()
    return rebuilding
