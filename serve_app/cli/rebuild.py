"""`darkroom rebuild`: the read model anew from log and archive, while the service runs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict

from rich.status import Status

from events.errors import ServiceError
from events.ids import new_id
from events.store.database import Database
from events.store.leases import Leases
from events.store.maintenance.rebuild import Rebuild
from events.streams.log_streams import LogStreams
from serve_app.cli.terminal import fail, progress_console, tell
from serve_app.operations.places import archive_writer, open_places
from serve_app.operations.rebuilding import Rebuilding, RebuildNotDone, Rebuilt
from settings.settings import Settings
from storage.images import ImageStoreError

_LEASE = "rebuild"
_LEASE_S = 120.0
_OTHER_REBUILD = "Another rebuild runs, or died within the last two minutes."


def rebuild() -> None:
    """Build the read model anew from log and archive, and put it in the place of the old one.

    The service may run meanwhile. Keys, endpoints and uploads are not touched.
    """
    began = time.monotonic()
    try:
        with progress_console().status("Reading") as status:
            rebuilt = asyncio.run(_rebuild(Settings.load(), status))
    except (RebuildNotDone, ServiceError, ImageStoreError) as error:
        fail(f"The read model is the old one: {error}")
    took_s = time.monotonic() - began
    jobs = rebuilt.from_log + rebuilt.from_archive
    tell(
        f"{rebuilt.from_log:,} jobs of the log and {rebuilt.from_archive:,} of"
        f" {rebuilt.segments:,} segments in {took_s:.1f} s: {jobs / took_s:,.0f} jobs/s.",
        asdict(rebuilt) | {"took_s": round(took_s, 3)},
    )


async def _rebuild(settings: Settings, status: Status) -> Rebuilt:
    database = Database(settings.stores.effective_database_url)
    leases, holder = Leases(database), new_id()
    renew_at = 0.0

    async def on_batch() -> None:
        nonlocal renew_at
        rebuilt = rebuilding.rebuilt
        status.update(f"{rebuilt.from_log:,} jobs of the log, {rebuilt.from_archive:,} archived")
        if time.monotonic() >= renew_at:
            renew_at = time.monotonic() + _LEASE_S / 4
            if not await leases.acquire(_LEASE, holder, ttl_s=_LEASE_S):
                raise RebuildNotDone(_OTHER_REBUILD)

    async with open_places(settings.log, settings.stores) as places:
        writer = archive_writer(places, database)
        rebuilding = Rebuilding(
            places,
            Rebuild(database, streams=LogStreams(settings.log.streams)),
            writer=writer,
            on_batch=on_batch,
        )
        try:
            await database.prepare()
            await on_batch()
            await rebuilding.run()
        finally:
            await leases.release(_LEASE, holder)
            await database.close()
    return rebuilding.rebuilt
