"""Sends images to presigned URLs. Each request sends one image.

An image is read from the store in parts during the request, so only one part is in memory.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from actors.callbacks.sender import Sender
from events.delivery import SendResult
from events.delivery_steps import UPLOADS_S, PresignedUpload
from events.types import ImageStored
from settings.constant import constant
from storage.images import ImageNotFound, ImageStore
from storage.service_secret import SealBroken, unsealed

_DELAYS_S = (0, 5, 30, 120)
"""Seconds before the first attempt and before each further attempt."""
_TIMEOUT_S = constant("IMAGE_PUT_TIMEOUT_S", 60.0)
_MAX_BYTES = constant("IMAGE_PUT_MAX_BYTES", 128 * 1024**2)
"""Size of the largest image that is uploaded."""
_IN_FLIGHT = constant("IMAGE_PUT_IN_FLIGHT", 16)
"""Largest number of images that are uploaded at the same time."""
_PART_BYTES = 2**18
_PNG = "image/png"
_AZURE = ".blob.core.windows.net"
_SOONEST_S = 1.0
_RETRIES_PER_S = 100.0
"""Largest number of an owner's deliveries per second that become due again after a missing permit.
"""


class UploadPermits:
    """Limits concurrent uploads. An owner gets a permit if more permits are free than it holds.

    So an owner gets at most half of the permits, and slow buckets of one owner do not stop the
    uploads of other owners.
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._taken = Counter[str]()
        """The number of permits in use, by owner."""
        self._retries_until: dict[str, float] = {}
        """By owner, the earliest time at which the next delivery without a permit becomes due."""

    @contextmanager
    def take(self, owner: str) -> Generator[bool]:
        """Acquire a permit, if possible without a wait. Yields whether this succeeded."""
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

    def retry_after_s(self, owner: str) -> float:
        """Return the seconds after which a delivery without a permit becomes due again."""
        now = self._clock()
        self._retries_until = {k: each for k, each in self._retries_until.items() if each > now}
        at = max(self._retries_until.get(owner, 0.0), now + _SOONEST_S)
        self._retries_until[owner] = at + 1 / _RETRIES_PER_S
        return at - now


class PresignedUploads:
    def __init__(
        self,
        sender: Sender,
        images: ImageStore,
        *,
        secret: bytes,
        delays_s: Sequence[float] = _DELAYS_S,
        longest_s: float = UPLOADS_S,
        timeout_s: float = _TIMEOUT_S,
        max_bytes: int = _MAX_BYTES,
        in_flight: int = _IN_FLIGHT,
    ) -> None:
        """`secret` is the secret of the service, with which the URLs are sealed."""
        self._sender = sender
        self._images = images
        self._secret = secret
        self.delays_s = delays_s
        self.longest_s = longest_s
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self.permits = UploadPermits(in_flight)

    def url(self, put: PresignedUpload) -> str | None:
        """Return the URL, or None if it was sealed with another secret of the service."""
        try:
            return unsealed(self._secret, put.sealed)
        except SealBroken:
            return None

    async def send(self, url: str, image: ImageStored) -> SendResult:
        """Make one attempt. Raises ImageStoreUnavailable."""
        if image.size_bytes > self._max_bytes:
            return _given_up(f"the image has more than {self._max_bytes} bytes")
        try:
            first = await self._part(image, 0)
            content = self._parts(image, first)
            headers = _headers(url, image)
            return await self._sender.put(url, content, headers, timeout_s=self._timeout_s)
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
        headers["x-ms-blob-type"] = "BlockBlob"  # Azure requires this header for every upload.
    return headers
