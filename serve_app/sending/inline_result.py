"""A result with the files of its images in it, as base64, which are sent as they are read."""

from __future__ import annotations

import secrets
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping, Sequence

from fastapi import Response

from events.result import ResultResponse
from events.types import ImageStored
from serve_app.sending.stored_file import PartedAnswer
from storage.images import ImageNotFound, ImageStore

_PART_BYTES = 3 * 64 * 1024
"""A multiple of three, so that the base64 of parts is that of the file."""


async def inline_result(
    result: ResultResponse,
    images: Sequence[ImageStored],
    store: ImageStore,
    *,
    max_bytes: int,
    headers: Mapping[str, str],
    send_timeout_s: float,
) -> Response:
    """`images` are those of the result; the first ones of at most `max_bytes` together are in it.

    However slowly it is read, one part of one file is in memory. Raises ImageStoreUnavailable.
    """
    chosen = [image for image in _first(images, max_bytes) if await _is_there(store, image)]
    places = {image.index: secrets.token_hex(16) for image in chosen}
    items = tuple(
        item.model_copy(update={"data": places.get(index)})
        for index, item in enumerate(result.results)
    )
    body = result.model_copy(update={"results": items}).body()
    texts = _between(body, [places[image.index].encode() for image in chosen])
    length = sum(map(len, texts)) + sum(_base64_length(image.size_bytes) for image in chosen)
    more = {
        "Content-Length": str(length),
        "Content-Encoding": "identity",  # pixels in base64 are not worth being compressed
    }
    parts = _parts(texts, chosen, store)
    return PartedAnswer(
        parts,
        200,
        {**headers, **more},
        media_type="application/json",
        send_timeout_s=send_timeout_s,
    )


def _first(images: Sequence[ImageStored], max_bytes: int) -> list[ImageStored]:
    first = []
    for image in images:
        max_bytes -= image.size_bytes
        if max_bytes < 0:
            break
        first.append(image)
    return first


async def _is_there(store: ImageStore, image: ImageStored) -> bool:
    try:
        return await store.size(image.key) == image.size_bytes
    except ImageNotFound:
        return False


def _between(body: bytes, places: Sequence[bytes]) -> list[bytes]:
    texts = []
    for place in places:
        text, _, body = body.partition(place)
        texts.append(text)
    return [*texts, body]


def _base64_length(size_bytes: int) -> int:
    return -(-size_bytes // 3) * 4


async def _parts(
    texts: Sequence[bytes], images: Sequence[ImageStored], store: ImageStore
) -> AsyncGenerator[bytes]:
    """Raises ImageStoreError."""
    for text, image in zip(texts, images, strict=False):
        yield text
        rest = range(image.size_bytes)
        while rest:
            yield b64encode(await store.get(image.key, rest[:_PART_BYTES]))
            rest = rest[_PART_BYTES:]
    yield texts[-1]
