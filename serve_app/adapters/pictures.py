"""Stored pictures as base64 inside of JSON, sent as they are read."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Callable

from fastapi import Response

from events.types import ImageStored
from serve_app.replica import Replica
from serve_app.sending.stored_file import PartedAnswer
from storage.images import ImageStore

_PART_BYTES = 3 * 64 * 1024
"""So much of a picture is in memory for each reader. Three bytes are four characters of base64."""


async def parts_of(images: ImageStore, image: ImageStored) -> AsyncGenerator[bytes]:
    """Each is read when the one before it is used. Raises ImageStoreError."""
    whole = range(image.size_bytes)
    for at in range(0, image.size_bytes, _PART_BYTES):
        yield await images.get(image.key, whole[at : at + _PART_BYTES])


async def base64_of(
    images: ImageStore,
    image: ImageStored,
    *,
    note: Callable[[bytes], None] = lambda _part: None,
) -> AsyncGenerator[bytes]:
    """In parts; `note` gets each before it is encoded. Raises ImageStoreError."""
    async for part in parts_of(images, image):
        note(part)
        yield b64encode(part)


async def json_in_parts(replica: Replica, parts: AsyncGenerator[bytes]) -> Response:
    """Raises what the first part raises: an image store that is away is an error, and no torn
    answer.
    """
    first = await anext(parts)
    return PartedAnswer(
        _with_first(first, parts),
        200,
        # It is said to have no encoding so that nobody compresses it: base64 of PNG is little
        # smaller then, and takes long.
        {"Cache-Control": "no-store", "Content-Encoding": "identity"},
        media_type="application/json",
        send_timeout_s=replica.services.http_settings.silence_timeout_s,
    )


async def _with_first(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for part in rest:
        yield part
