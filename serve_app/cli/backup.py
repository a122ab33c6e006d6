"""`darkroom backup` and `darkroom restore`: all that an installation keeps, as files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pydantic import SecretStr

from events.errors import ServiceError
from events.store.database import Database
from events.store.maintenance.rebuild import Rebuild
from events.streams.log_streams import LogStreams
from serve_app.cli.admin_key import ADMIN_KEY_FILE
from serve_app.cli.terminal import fail, progress_console, tell
from serve_app.local.nats_server import NatsDidNotStart, NatsServer
from serve_app.operations.backup import BackupRefused, back_up, lay_out, load_log
from serve_app.operations.places import archive_writer, open_places
from serve_app.operations.rebuilding import Rebuilding, Rebuilt
from settings.log import LogSettings
from settings.settings import Settings
from settings.stores import StoreSettings
from storage.images import ImageStoreError

_PRIVATE_FILES = ("secret", ADMIN_KEY_FILE)
_ERRORS = (BackupRefused, ServiceError, ImageStoreError, NatsDidNotStart, OSError)

BackupArgument = Annotated[Path, typer.Argument(help="A folder.")]


def backup(folder: BackupArgument) -> None:
    """Copy all that the service keeps to a new folder, while it runs.

    A database and an object store of your own are not copied: back up the database before, and the
    object store after.
    """
    os.umask(0o077)
    settings = Settings.load()
    try:
        with progress_console().status("Copying"):
            elsewhere = asyncio.run(
                back_up(settings.log, settings.stores, folder, private_files=_PRIVATE_FILES)
            )
    except BackupRefused as error:
        fail(f"Nothing was copied: {error}")
    except _ERRORS as error:
        fail(f"{folder} is no whole backup: {error}")
    lines = [f"Not in it: {each}, which you keep yourself." for each in elsewhere]
    text = "\n".join([f"The backup is in {folder}.", *lines])
    tell(text, {"folder": str(folder), "not_in_it": list(elsewhere)})


def restore(folder: BackupArgument) -> None:
    """Make a new installation from a backup, in a data folder that is empty; start it then."""
    os.umask(0o077)
    settings = Settings.load()
    try:
        with progress_console().status("Restoring"):
            rebuilt = asyncio.run(_restore(settings, folder))
    except _ERRORS as error:
        fail(f"Not restored: {error}")
    jobs = rebuilt.from_log + rebuilt.from_archive
    text = f"{jobs:,} jobs are restored to {settings.stores.data_dir}. Start it: darkroom up"
    tell(text, {"jobs": jobs, "data_dir": str(settings.stores.data_dir)})


async def _restore(settings: Settings, folder: Path) -> Rebuilt:
    stores = settings.stores
    await lay_out(settings.log, stores, folder, private_files=_PRIVATE_FILES)
    with _event_log(settings.log, stores) as log:
        await load_log(log, stores, folder)
        database = Database(stores.effective_database_url)
        try:
            await database.prepare()
            async with open_places(log, stores) as places:
                rebuilding = Rebuilding(
                    places,
                    Rebuild(database, streams=LogStreams(settings.log.streams)),
                    writer=archive_writer(places, database),
                    on_batch=_nothing,
                )
                await rebuilding.run()
        finally:
            await database.close()
    return rebuilding.rebuilt


@contextmanager
def _event_log(log: LogSettings, stores: StoreSettings) -> Generator[LogSettings]:
    """That of the settings, or else a nats-server of our own on the new data folder."""
    if log.nats_url is not None:
        yield log
        return
    server = NatsServer(stores.nats_dir)
    server.start()
    try:
        yield log.model_copy(update={"nats_url": SecretStr(server.url)})
    finally:
        server.stop()


async def _nothing() -> None:
    pass
