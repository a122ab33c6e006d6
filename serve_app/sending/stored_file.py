"""A stored file as an answer: the whole, a part, or only that it has not changed.

Conditions and ranges are those of RFC 9110, sections 13.1 and 14.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request, Response
from starlette.types import Receive, Scope, Send

from events.store.records import Upload
from events.types import ImageStored
from serve_app.api_error import ApiError
from serve_app.sending.timed_stream import SlowReader, TimedStream
from serve_app.uploads.store import LATENT_SUFFIX
from storage.images import ImageStore, ImageStoreError
from storage.keys import PNG, SAFETENSORS

logger = logging.getLogger(__name__)

PART_BYTES = 256 * 1024
"""So much of a file is in memory for each of its readers, however slow they are."""
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class StoredFile:
    key: str
    """Of the image store."""
    digest: str
    size_bytes: int
    media_type: str

    @classmethod
    def of_image(cls, image: ImageStored) -> StoredFile:
        return cls(image.key, image.digest, image.size_bytes, image.media_type or PNG)

    @classmethod
    def of_upload(cls, upload: Upload) -> StoredFile:
        media_type = SAFETENSORS if upload.name.endswith(LATENT_SUFFIX) else PNG
        return cls(upload.storage_key, upload.digest, upload.size_bytes, media_type)

    @property
    def etag(self) -> str:
        return f'"{self.digest}"'


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request wants of a file."""

    is_head: bool
    if_none_match: str | None
    if_range: str | None
    range_: str | None

    def has(self, file: StoredFile) -> bool:
        """Whether the caller has it. Weak comparison, as If-None-Match asks for."""
        listed = [] if self.if_none_match is None else self.if_none_match.split(",")
        return any(each.strip().removeprefix("W/") in {file.etag, "*"} for each in listed)

    def part_of(self, file: StoredFile) -> range | None:
        """The bytes that a header with one range names.

        None, which stands for the whole file, for any other header; a server may answer several
        ranges so. Raises ApiError 416.
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


def _asked(
    request: Request,
    if_none_match: Annotated[str | None, Header(alias="If-None-Match")] = None,
    if_range: Annotated[str | None, Header(alias="If-Range")] = None,
    range_: Annotated[str | None, Header(alias="Range", description="One range of bytes")] = None,
) -> Asked:
    return Asked(request.method == "HEAD", if_none_match, if_range, range_)


AskedDep = Annotated[Asked, Depends(_asked)]


async def file_answer(
    file: StoredFile,
    asked: Asked,
    images: ImageStore,
    *,
    cache_control: str,
    send_timeout_s: float,
) -> Response:
    """Raises ApiError 416, ImageNotFound, ImageStoreUnavailable.

    `send_timeout_s`: how long a reader may take for `PART_BYTES` before the answer is cut off.
    """
    headers = {
        "ETag": file.etag,
        "Accept-Ranges": "bytes",
        "Cache-Control": cache_control,
        "X-Content-Type-Options": "nosniff",
    }
    if asked.has(file):
        return Response(status_code=304, headers=headers)
    if asked.is_head:
        headers["Content-Length"] = str(file.size_bytes)
        return Response(headers=headers, media_type=file.media_type)
    part = asked.part_of(file)
    if part is not None:
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{file.size_bytes}"
    wanted = range(file.size_bytes) if part is None else part
    headers["Content-Length"] = str(len(wanted))
    first = await images.get(file.key, wanted[:PART_BYTES])
    return PartedAnswer(
        _parts(first, wanted[PART_BYTES:], images, file.key),
        200 if part is None else 206,
        headers,
        media_type=file.media_type,
        send_timeout_s=send_timeout_s,
    )


async def _parts(first: bytes, rest: range, images: ImageStore, key: str) -> AsyncGenerator[bytes]:
    """Each is read when the one before it is sent. Raises ImageStoreError."""
    yield first
    while rest:
        yield await images.get(key, rest[:PART_BYTES])
        rest = rest[PART_BYTES:]


class PartedAnswer(TimedStream):
    """Bytes of stored files; the headers say how many they are in all."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        status_code: int,
        headers: dict[str, str],
        *,
        media_type: str,
        send_timeout_s: float,
    ) -> None:
        super().__init__(parts, status_code, headers, media_type=media_type)
        self.send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What breaks off has fewer bytes than its Content-Length, so its reader notices."""
        try:
            await super().__call__(scope, receive, send)
        except SlowReader:
            return
        except ImageStoreError as error:
            fields = {"action": "send_file", "error": str(error)}
            logger.warning("a file was cut off while it was sent", extra=fields)
