"""`darkroom rebuild`: rebuilds the read model while the service runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict

from rich.status import Status

from cli.terminal import fail, progress_console, tell
from events.errors import ServiceError
from events.ids import new_id
from events.store.database import Database
from events.store.leases import Leases
from events.store.table_rebuild import Rebuild
from operations.rebuilding import Rebuilding, RebuildNotDone, Rebuilt
from operations.stores import open_stores
from settings.settings import Settings
from storage.images import ImageStoreError

_LEASE = "rebuild"
_LEASE_S = 120.0
_OTHER_REBUILD = "Another rebuild is running, or ended unexpectedly in the last two minutes."


def rebuild() -> None:
    """Rebuild the read model from the log and the histories, and replace the old one.

    The service may run during the rebuild. Keys, endpoints and uploads do not change.
    """
    began = time.monotonic()
    try:
        with progress_console().status("Reading") as status:
            rebuilt = asyncio.run(_rebuild(Settings.load(), status))
    except (RebuildNotDone, ServiceError, ImageStoreError) as error:
        fail(f"The read model was not changed: {error}")
    took_s = time.monotonic() - began
    jobs = rebuilt.from_log + rebuilt.from_histories
    tell(
        f"{rebuilt.from_log:,} jobs of the log and {rebuilt.from_histories:,} histories in"
        f" {took_s:.1f} s: {jobs / took_s:,.0f} jobs/s.",
        asdict(rebuilt) | {"took_s": round(took_s, 3)},
    )
    if rebuilt.unreadable:
        fail(
            f"{rebuilt.unreadable:,} histories are damaged, so their jobs have no row. `darkroom "
            "verify` names them."
        )


async def _rebuild(settings: Settings, status: Status) -> Rebuilt:
    database = Database(settings.stores.effective_database_url)
    leases, holder = Leases(database), new_id()
    renew_at = 0.0

    async def on_batch() -> None:
        nonlocal renew_at
        rebuilt = rebuilding.rebuilt
        status.update(f"{rebuilt.from_log:,} jobs of the log, {rebuilt.from_histories:,} histories")
        if time.monotonic() >= renew_at:
            renew_at = time.monotonic() + _LEASE_S / 4
            if not await leases.acquire(_LEASE, holder, ttl_s=_LEASE_S):
                raise RebuildNotDone(_OTHER_REBUILD)

    async with open_stores(settings.log, settings.stores) as stores:
        rebuilding = Rebuilding(stores, Rebuild(database), on_batch=on_batch)
        try:
            await database.prepare()
            await on_batch()
            await rebuilding.run()
        finally:
            await leases.release(_LEASE, holder)
            await database.close()
    return rebuilding.rebuilt
