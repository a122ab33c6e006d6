"""A backup of an installation while it runs, and an installation from a backup.

The order is what makes the copies fit: database, deliveries, log, files. So the log is never older
than the database, and each file that the log names is in the copy. What left the log for the
archive meanwhile is in a segment by then. A rebuild of the read model ends the restore, and brings
rows and segments in line with the log.

The queues are not in it: the router fills them again.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from events.log import utc_now
from serve_app.operations.places import open_bus, open_database
from serve_app.operations.saved_streams import load_streams, save_streams, streams_in
from settings.log import LogSettings
from settings.stores import SQLITE_FILE, StoreSettings
from settings.version import VERSION
from storage.keys import ARCHIVE

FORMAT = "darkroom.backup.v1"
_MANIFEST = "manifest.json"
_STREAMS = "streams"
_IMAGES = "images"


class BackupRefused(Exception):
    """The folder cannot be used; the message says why."""


async def back_up(
    log: LogSettings, stores: StoreSettings, folder: Path, *, private_files: Sequence[str]
) -> list[str]:
    """Copy all that the service keeps to a new folder; what of it is elsewhere, and was not copied.

    `private_files`: those of the data folder that no other place has.

    Raises BackupRefused, LogUnavailable, DatabaseUnavailable, OSError.
    """
    await asyncio.to_thread(_make_empty, folder)
    elsewhere = []
    began_at = utc_now()
    async with open_bus(log, stores) as bus, open_database(stores) as database:
        if stores.database_url is None:
            await database.copy_to(folder / SQLITE_FILE)
        else:
            elsewhere.append("the database")
        await asyncio.to_thread((folder / _STREAMS).mkdir)
        await save_streams(bus, folder / _STREAMS)
    images = _local_folder(stores.effective_images_url)
    if images is None:
        elsewhere.append("the images")
    else:
        await asyncio.to_thread(_copy_images, images, folder / _IMAGES)
    await asyncio.to_thread(_copy_files, stores.data_dir, folder, private_files)
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "began_at": began_at.isoformat(),
        "ended_at": utc_now().isoformat(),
        "elsewhere": elsewhere,
    }
    # Last: a folder without it is no whole backup.
    await asyncio.to_thread((folder / _MANIFEST).write_text, json.dumps(manifest, indent=2))
    return elsewhere


async def lay_out(
    log: LogSettings, stores: StoreSettings, folder: Path, *, private_files: Sequence[str]
) -> None:
    """Copy the files of a backup to where a new installation has them.

    Raises BackupRefused, OSError.
    """
    await asyncio.to_thread(_check, folder, log_streams=log.streams)
    await asyncio.to_thread(_lay_out, stores, folder, private_files)


async def load_log(log: LogSettings, stores: StoreSettings, folder: Path) -> None:
    """Make the streams of a backup in a log that has none; of one as many as the settings say.

    Raises LogUnavailable, OSError.
    """
    async with open_bus(log, stores) as bus:
        await load_streams(bus, folder / _STREAMS)


def _make_empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(folder.iterdir()):
        raise BackupRefused(f"{folder} is not empty")


def _lay_out(stores: StoreSettings, folder: Path, private_files: Sequence[str]) -> None:
    data_dir = stores.data_dir
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(data_dir.iterdir()):
        raise BackupRefused(f"{data_dir} is not empty; set DARKROOM_DATA_DIR to a new folder")
    _copy_files(folder, data_dir, private_files)
    if stores.database_url is None and (folder / SQLITE_FILE).exists():
        shutil.copy2(folder / SQLITE_FILE, data_dir / SQLITE_FILE)
    images = _local_folder(stores.effective_images_url)
    if images is not None and (folder / _IMAGES).exists():
        shutil.copytree(folder / _IMAGES, images, dirs_exist_ok=True)


def _check(folder: Path, *, log_streams: int) -> None:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
    except (OSError, ValueError):
        raise BackupRefused(f"{folder} is no whole backup: it has no {_MANIFEST}") from None
    if manifest.get("format") != FORMAT:
        raise BackupRefused(f"{folder} is a backup that this version cannot read")
    if (count := streams_in(folder / _STREAMS)) not in {1, log_streams}:
        raise BackupRefused(
            f"the event log in {folder} is {count} streams: set DARKROOM_LOG_STREAMS to {count}"
        )


def _local_folder(images_url: str) -> Path | None:
    parts = urlsplit(images_url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _copy_files(source: Path, to: Path, names: Sequence[str]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            shutil.copy2(source / name, to / name)


def _copy_images(source: Path, to: Path) -> None:
    """Segments are looked for until there are no new ones: one takes the place of others."""
    to.mkdir()
    _copy_new(source, source, to)
    while _copy_new(source / ARCHIVE, source, to):
        pass


def _copy_new(folder: Path, root: Path, to: Path) -> int:
    """Copy the files below `folder` that are not there yet; how many."""
    count = 0
    for path in folder.rglob("*"):
        copy = to / path.relative_to(root)
        if "#" in path.name or copy.exists() or not path.is_file():  # `#`: not whole yet
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # it was removed meanwhile
            shutil.copy2(path, copy)
            count += 1
    return count
