"""Puts images where their callers said: one request with one image.

They are read from the store part by part as they are sent, so that a slow receiver holds a part in
memory and no image.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator
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
_SOONEST_S = 1.0
_WAKES_PER_S = 100.0
"""How many of an owner's deliveries that found no turn come again in a second."""


class PutTurns:
    """Who puts an image now. An owner has at most as many turns as are left for others.

    So the slow buckets of one owner hold up nobody else's images, nor their callbacks.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._taken = Counter[str]()
        """By owner; those without a turn are left out."""
        self._wakes_until: dict[str, float] = {}
        """Until when deliveries of an owner come again, one after the other."""

    @contextmanager
    def take(self, owner: str) -> Generator[bool]:
        """Whether there is a turn; nobody waits for it here."""
        left = self._most - self._taken.total()
        if left <= 0 or self._taken[owner] >= max(1, left):
            yield False
            return
        self._taken[owner] += 1
        try:
            yield True
        finally:
            self._taken[owner] -= 1
            self._taken = +self._taken

    def come_again_s(self, owner: str) -> float:
        """In how many seconds one that found no turn is to come again."""
        now = self._clock()
        self._wakes_until = {k: each for k, each in self._wakes_until.items() if each > now}
        at = max(self._wakes_until.get(owner, 0.0), now + _SOONEST_S)
        self._wakes_until[owner] = at + 1 / _WAKES_PER_S
        return at - now


class ImagePuts:
    def __init__(
        self, sender: Sender, images: ImageStore, *, secret: bytes, settings: ImagePutSettings
    ) -> None:
        """`secret`: that the addresses were sealed with."""
        self._sender = sender
        self._images = images
        self._secret = secret
        self.settings = settings
        self.turns = PutTurns(settings.in_flight)

    def url(self, put: ImagePut) -> str | None:
        """Its address; None where this service cannot read it any more."""
        try:
            return unsealed(self._secret, put.sealed)
        except SealBroken:
            return None

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
