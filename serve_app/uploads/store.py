"""Stores what callers upload."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from events.ids import new_id
from events.log import utc_now
from events.store.records import Upload
from serve_app.access.kept_bytes import OwnedBytes
from serve_app.checks import Checks
from serve_app.refusals import TooManyUploadBytes
from serve_app.uploads.images import read_input_image
from serve_app.uploads.latents import read_input_latent
from serve_app.uploads.names import content_name, upload_name
from serve_app.uploads.sanitized_file import SanitizedFile
from settings.http import HttpSettings
from storage.images import ImageStore
from storage.keys import upload_key

if TYPE_CHECKING:
    from events.store.uploads import Uploads

LATENT_SUFFIX = ".latent"


class UploadStore:
    """Stores files in the image store, and a row for each in the database."""

    def __init__(
        self,
        *,
        rows: Uploads,
        images: ImageStore,
        settings: HttpSettings,
        owned_bytes: OwnedBytes,
        max_bytes_of_owner: int,
    ) -> None:
        """`max_bytes_of_owner`: what all files of an owner may take; 0 is any number."""
        self._rows = rows
        self._images = images
        self._settings = settings
        self._owned_bytes = owned_bytes
        self._max_bytes_of_owner = max_bytes_of_owner
        self.decodes = Checks(settings.upload_decodes, timeout_s=settings.body_wait_s)
        """Where pictures of callers are decoded."""

    def stop(self) -> None:
        self.decodes.stop()

    async def add(self, owner: str, file_name: str, data: bytes) -> Upload:
        """Store an image or a latent under the last part of its file name.

        Returns the upload of before where the owner has the same file under that name. Raises
        UploadRefused, NoTurn, DatabaseUnavailable, ImageStoreUnavailable.
        """
        name = upload_name(file_name, max_chars=self._settings.max_upload_name_chars)
        return await self._store(owner, name, data)

    async def add_content(self, owner: str, data: bytes) -> Upload:
        """Store an image that has no name under one that its bytes give it; a repeat is one file.

        Raises what `add` raises.
        """
        name = await self.decodes.run(owner, content_name, data, is_quick=False)
        known = (await self._rows.use(owner, [name], utc_now())).get(name)
        return await self._store(owner, name, data) if known is None else known

    async def _store(self, owner: str, name: str, data: bytes) -> Upload:
        max_pixels = self._settings.max_upload_pixels
        file, digest = await self.decodes.run(
            owner, _sanitize, name, data, max_pixels, is_quick=False
        )
        now, upload_id = utc_now(), new_id()
        known = (await self._rows.use(owner, [name], now)).get(name)
        if known is not None and known.digest == digest:
            return known
        upload = Upload(
            id=upload_id,
            owner=owner,
            name=name,
            digest=digest,
            storage_key=upload_key(owner, digest, upload_id),
            width=file.width,
            height=file.height,
            size_bytes=len(file.data),
            created_at=now,
            used_at=now,
        )
        await self._add(upload, file.data)
        return upload

    async def _add(self, upload: Upload, data: bytes) -> None:
        """What the owner keeps was added up a moment ago; the database decides."""
        max_bytes = self._max_bytes_of_owner
        used_bytes = (await self._owned_bytes.kept(upload.owner)).upload_bytes if max_bytes else 0
        if max_bytes and used_bytes + upload.size_bytes > max_bytes:
            raise TooManyUploadBytes(used_bytes, upload.size_bytes, max_bytes)
        await self._images.put(upload.storage_key, data)
        kept_bytes = await self._rows.add(upload, max_bytes=max_bytes)
        if kept_bytes is not None:
            await self._images.delete(upload.storage_key)
            raise TooManyUploadBytes(kept_bytes, upload.size_bytes, max_bytes)


def _sanitize(name: str, data: bytes, max_pixels: int) -> tuple[SanitizedFile, str]:
    """What is stored of a file, and its digest. Raises UploadRefused."""
    read = read_input_latent if name.endswith(LATENT_SUFFIX) else read_input_image
    file = read(data, max_pixels=max_pixels)
    return file, f"sha256:{hashlib.sha256(file.data).hexdigest()}"
