"""The image store, by a file that is stored, read and removed; and the room on the disks here."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from events.ids import new_id
from events.log import utc_now
from serve_app.operations.diagnosis.findings import Finding, Level, clock_finding, in_daemon, size
from settings.stores import StoreSettings
from storage.images import ImageStore, ImageStoreError
from storage.keys import UPLOADS

_CONTENT = b"darkroom doctor"
_LITTLE_BYTES = 2 * 1024**3
_VERY_LITTLE_BYTES = 128 * 1024**2


class ImageStoreCheck:
    part = "image store"

    def __init__(self, stores: StoreSettings) -> None:
        self._stores = stores

    async def run(self) -> list[Finding]:
        url = self._stores.effective_images_url
        if (folder := local_folder(url)) is not None and not await in_daemon(folder.is_dir):
            text = f"There is no folder {folder} yet; the first picture makes it."
            return [Finding(self.part, Level.NOTE, text)]
        try:
            store = ImageStore(url, retry_s=self._stores.images_retry_s)
            asked_at = utc_now()
            stored_at = await _stored_at(store)
        except Exception as error:  # noqa: BLE001 - obstore has errors of its own for what a URL lacks
            remedy = f"See that {folder} can be written to."
            if folder is None:
                remedy = (
                    "See that DARKROOM_IMAGES_URL names a bucket that is there, and that its "
                    "provider's variables (AWS_…, GOOGLE_…, AZURE_…) let it be read and written."
                )
            text = f"{_bare(url)} cannot be used: {_first_line(error).replace(url, _bare(url))}"
            return [Finding(self.part, Level.ERROR, text, remedy)]
        found = [Finding(self.part, Level.OK, f"{_bare(url)} stores, gives and removes files.")]
        if folder is None and stored_at is not None:
            # Half of its way there is within the tolerance, and object stores tell whole seconds.
            found.append(clock_finding("the image store", stored_at, asked_at))
        return found


async def _stored_at(store: ImageStore) -> datetime | None:
    """When the store says that it took a file. Raises ImageStoreError.

    The janitor removes what is left of a look that died, as an upload that nobody names.
    """
    folder = f"{UPLOADS}/doctor/{new_id()}"
    key = f"{folder}/probe"
    await store.put(key, _CONTENT)
    try:
        if await store.get(key) != _CONTENT:
            raise ImageStoreError("it gives back something else than was stored")
        async for files in store.files(folder):
            for file in files:
                return file.stored_at
        return None
    finally:
        await store.delete(key)


class RoomCheck:
    part = "disk"

    def __init__(self, folders: Sequence[Path]) -> None:
        """`folders`: where something is kept on this machine, made already or not."""
        self._folders = folders

    async def run(self) -> list[Finding]:
        return await in_daemon(self._look)

    def _look(self) -> list[Finding]:
        found: dict[int, Finding] = {}
        for folder in self._folders:
            there = next(each for each in (folder, *folder.parents) if each.exists())
            found.setdefault(there.stat().st_dev, self._room(there))
        return list(found.values())

    def _room(self, folder: Path) -> Finding:
        free = shutil.disk_usage(folder).free
        text = f"{size(free)} free at {folder}."
        if free >= _LITTLE_BYTES:
            return Finding(self.part, Level.OK, text)
        level = Level.ERROR if free < _VERY_LITTLE_BYTES else Level.WARNING
        remedy = "Make room, or shorten DARKROOM_RETENTION_S: nothing is stored on a full disk."
        return Finding(self.part, level, text, remedy)


def local_folder(url: str) -> Path | None:
    """The folder of an image store on this machine."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _bare(url: str) -> str:
    """Without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
