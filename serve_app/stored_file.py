"""Sends stored files, as bytes or as base64 in JSON. Responses to slow clients are ended."""

from __future__ import annotations

import asyncio
import logging
import re
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from events.store.records import Upload
from events.types import ImageStored, Poster
from serve_app.error_responses import ApiError
from serve_app.upload_store import LATENT_SUFFIX
from settings.http import SILENCE_TIMEOUT_S
from storage.file_names import JPEG, PNG, media_type_of, without_folder
from storage.images import ImageStore, ImageStoreError

logger = logging.getLogger(__name__)

PART_BYTES = 256 * 1024
"""The largest number of bytes of a file that are in memory for each client."""
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")
_BASE64_PART_BYTES = 3 * 64 * 1024
"""The number of bytes of an image that are encoded at a time. A multiple of 3 needs no padding."""


class SlowReader(Exception):
    """The client reads an answer too slowly."""


class TimedStream(StreamingResponse):
    send_timeout_s: float
    """The longest time in seconds for sending one part."""

    async def stream_response(self, send: Send) -> None:
        """Send the parts. Raises SlowReader, which leaves the response incomplete."""

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self.send_timeout_s):
                    await send(message)
            except TimeoutError as error:
                raise SlowReader from error

        await super().stream_response(send_in_time)


_SHOWN_GROUPS = {"image", "video", "audio"}


@dataclass(frozen=True, slots=True)
class StoredFile:
    key: str
    """The key of the file in the image store."""
    digest: str
    size_bytes: int
    media_type: str

    @classmethod
    def of_image(cls, image: ImageStored) -> StoredFile:
        return cls(image.key, image.digest, image.size_bytes, image.media_type or PNG)

    @classmethod
    def of_poster(cls, poster: Poster) -> StoredFile:
        return cls(poster.key, poster.digest, poster.size_bytes, JPEG)

    @classmethod
    def of_upload(cls, upload: Upload) -> StoredFile:
        """The names of video and audio files have their own suffixes, and their width is 0."""
        name = without_folder(upload.name)
        is_image = upload.width and not name.endswith(LATENT_SUFFIX)
        media_type = PNG if is_image else media_type_of(name)
        return cls(upload.storage_key, upload.digest, upload.size_bytes, media_type)

    @property
    def disposition_header(self) -> dict[str, str]:
        """The header that makes a browser save a file that could contain a program.

        Only media and plain text may be shown.
        """
        group = self.media_type.partition("/")[0]
        is_shown = group in _SHOWN_GROUPS or self.media_type == "text/plain"
        is_shown = is_shown and self.media_type != "image/svg+xml"
        return {} if is_shown else {"Content-Disposition": "attachment"}

    @property
    def etag(self) -> str:
        return f'"{self.digest}"'


@dataclass(frozen=True, slots=True)
class FileRequest:
    """The method and the conditional and range headers of a request for a file."""

    is_head: bool
    if_none_match: str | None
    if_range: str | None
    range_: str | None

    def has(self, file: StoredFile) -> bool:
        """Return whether the caller has the file. If-None-Match requires weak comparison."""
        listed = [] if self.if_none_match is None else self.if_none_match.split(",")
        return any(each.strip().removeprefix("W/") in {file.etag, "*"} for each in listed)

    def part_of(self, file: StoredFile) -> range | None:
        """Return the range of bytes in the header Range; None means the whole file.

        Returns None for several ranges, which a server may answer with the whole file. Raises
        ApiError 416.
        """
        named = _RANGE.fullmatch(self.range_ or "")
        if self.if_range not in {None, file.etag} or named is None:
            return None
        if not (named["first"] or named["last"]):
            return None
        size = file.size_bytes
        if not named["first"]:
            part = range(max(size - int(named["last"]), 0), size)
        else:
            first, last = int(named["first"]), int(named["last"] or size)
            if named["last"] and last < first:
                return None
            part = range(first, min(last + 1, size))
        if not part:
            headers = {"Content-Range": f"bytes */{size}"}
            message = f"The file has {size} bytes, none of them in this range."
            raise ApiError(416, "range_not_satisfiable", message, headers=headers)
        return part


def _file_request(
    request: Request,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match")] = None,
    if_range: Annotated[str | None, Header(alias="If-Range")] = None,
    range_: Annotated[str | None, Header(alias="Range", description="One range of bytes")] = None,
) -> FileRequest:
    return FileRequest(request.method == "HEAD", if_none_match, if_range, range_)


FileRequestDep = Annotated[FileRequest, Depends(_file_request)]


async def file_answer(
    file: StoredFile,
    file_request: FileRequest,
    images: ImageStore,
    *,
    cache_control: str,
) -> Response:
    """Build the response with a stored file, or a part of the file.

    Raises ApiError 416, ImageNotFound, ImageStoreUnavailable.
    """
    headers = {
        "ETag": file.etag,
        **file.disposition_header,
        "Accept-Ranges": "bytes",
        "Cache-Control": cache_control,
        "X-Content-Type-Options": "nosniff",
    }
    if file_request.has(file):
        return Response(status_code=304, headers=headers)
    if file_request.is_head:
        headers["Content-Length"] = str(file.size_bytes)
        return Response(headers=headers, media_type=file.media_type)
    part = file_request.part_of(file)
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.size_bytes}"
    wanted = range(file.size_bytes) if part is None else part
    headers["Content-Length"] = str(len(wanted))
    # The image store cannot read an empty range.
    first = await images.get(file.key, wanted[:PART_BYTES]) if wanted else b""
    return StoredFileResponse(
        _parts(first, wanted[PART_BYTES:], images, file.key),
        200 if part is None else 206,
        headers,
        media_type=file.media_type,
    )


async def _parts(first: bytes, rest: range, images: ImageStore, key: str) -> AsyncGenerator[bytes]:
    """Yield `first`, then read and yield the `rest` part by part. Raises ImageStoreError."""
    yield first
    while rest:
        yield await images.get(key, rest[:PART_BYTES])
        rest = rest[PART_BYTES:]


class StoredFileResponse(TimedStream):
    """A response with stored files, which are read and sent in parts."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        status_code: int,
        headers: dict[str, str],
        *,
        media_type: str,
    ) -> None:
        super().__init__(parts, status_code, headers, media_type=media_type)
        self.send_timeout_s = SILENCE_TIMEOUT_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. If reading a file fails, the response stays incomplete.

        The client can detect this by the missing bytes or by the missing last chunk.
        """
        try:
            await super().__call__(scope, receive, send)
        except SlowReader:
            return
        except ImageStoreError as error:
            fields = {"action": "send_file", "error": str(error)}
            logger.warning("a file was cut off while it was sent", extra=fields)


async def parts_of(images: ImageStore, image: ImageStored) -> AsyncGenerator[bytes]:
    """Read and yield the bytes of an image part by part. Raises ImageStoreError."""
    whole = range(image.size_bytes)
    for at in range(0, image.size_bytes, _BASE64_PART_BYTES):
        yield await images.get(image.key, whole[at : at + _BASE64_PART_BYTES])


async def base64_of(
    images: ImageStore,
    image: ImageStored,
    *,
    note: Callable[[bytes], None] = lambda _part: None,
) -> AsyncGenerator[bytes]:
    """Yield an image in base64, in parts. `note` is called with each part before it is encoded.

    Raises ImageStoreError.
    """
    async for part in parts_of(images, image):
        note(part)
        yield b64encode(part)


async def json_in_parts(parts: AsyncGenerator[bytes]) -> Response:
    """Build a JSON answer from parts. The first part is read here, and its errors are raised.

    An unavailable image store therefore causes an error response instead of a truncated answer.
    """
    first = await anext(parts)
    return StoredFileResponse(
        _with_first(first, parts),
        200,
        # The header prevents compression, which takes long and makes base64 of PNG little smaller.
        {"Cache-Control": "no-store", "Content-Encoding": "identity"},
        media_type="application/json",
    )


async def _with_first(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for part in rest:
        yield part
