"""Puts images where their callers said: one request with one image.

They are read from the store part by part as they are sent, so that a slow receiver holds a part in
memory and no image.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from actors.callbacks.sender import Sender
from events.delivery_policy import SendResult
from events.types import ImageStored
from events.wire.image_puts import ImagePut
from settings.callbacks import ImagePutSettings
from storage.images import ImageNotFound, ImageStore
from storage.sealing import SealBroken, unsealed

_PART_BYTES = 2**18
_PNG = "image/png"
_AZURE = ".blob.core.windows.net"


class ImagePuts:
    def __init__(
        self, sender: Sender, images: ImageStore, *, secret: bytes, settings: ImagePutSettings
    ) -> None:
        """`secret`: that the addresses were sealed with."""
        self._sender = sender
        self._images = images
        self._secret = secret
        self.settings = settings
        self._under_way: Counter[str] = Counter()
        """How many images are being put, by owner."""

    def url(self, put: ImagePut) -> str | None:
        """Its address; None where this service cannot read it any more."""
        try:
            return unsealed(self._secret, put.sealed)
        except SealBroken:
            return None

    def is_free(self, owner: str) -> bool:
        """Whether there is a place for one try.

        Half of all places are for other owners: receivers of one may be many, and each slow.
        """
        most = self.settings.in_flight
        is_within = self._under_way[owner] < max(1, most // 2)
        return is_within and self._under_way.total() < most

    @contextmanager
    def place(self, owner: str) -> Iterator[bool]:
        """Hold a place for one try; False if there is none."""
        is_free = self.is_free(owner)
        self._under_way[owner] += is_free
        try:
            yield is_free
        finally:
            self._under_way[owner] -= is_free
            if not self._under_way[owner]:
                del self._under_way[owner]

    async def send(self, url: str, image: ImageStored) -> SendResult:
        """One try. Raises ImageStoreUnavailable."""
        if image.size_bytes > self.settings.max_bytes:
            return _given_up(f"the image has more than {self.settings.max_bytes} bytes")
        try:
            first = await self._part(image, 0)
            content = self._parts(image, first)
            timeout_s = self.settings.timeout_s
            return await self._sender.put(url, content, _headers(url, image), timeout_s=timeout_s)
        except ImageNotFound:
            return _given_up("the image is not stored any more")

    async def _parts(self, image: ImageStored, first: bytes) -> AsyncGenerator[bytes]:
        yield first
        for begin in range(_PART_BYTES, image.size_bytes, _PART_BYTES):
            yield await self._part(image, begin)

    async def _part(self, image: ImageStored, begin: int) -> bytes:
        end = min(begin + _PART_BYTES, image.size_bytes)
        return await self._images.get(image.key, range(begin, end))


def _given_up(why: str) -> SendResult:
    return SendResult(latency_s=0.0, error=why, refused=True)


def _headers(url: str, image: ImageStored) -> dict[str, str]:
    headers = {
        "Content-Type": image.media_type or _PNG,
        "Content-Length": str(image.size_bytes),
    }
    if (urlsplit(url).hostname or "").endswith(_AZURE):
        headers["x-ms-blob-type"] = "BlockBlob"  # which Azure does without for no upload
    return headers
