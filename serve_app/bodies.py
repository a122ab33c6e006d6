"""Reads request bodies, JSON and forms, with limits of size and of sending time."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from serve_app.error_responses import ApiError
from serve_app.fair_threads import QUICK_BYTES, FairSemaphore, FairThreads
from settings.constant import constant

MAX_DEPTH = 100
"""The most levels of nested arrays and objects in a body. The event with the body may have 200."""

_MAX_CONTAINERS = 2**16
"""The most arrays and objects in a body. No other Python thread runs while a body is parsed."""
_MAX_COMMAS = 2**18
"""The most commas in a body. Commas separate values and keys, each of which costs time and up to
hundreds of bytes of memory. The base64 of inline images contains no commas.
"""
_MAX_HELD_BYTES = constant("MAX_HELD_BODY_BYTES", 128 * 1024**2)
"""The most bytes of bodies in the memory of one replica. One owner may use half of them."""
_MAX_IMAGE_BYTES = 16 * 1024**2
"""The largest size in bytes of a JSON body that may contain inline images."""
_GRACE_S = constant("BODY_GRACE_S", 10.0)
"""Seconds that a body may take in addition to its time at the lowest rate."""
_MIN_BYTES_PER_S = constant("MIN_BODY_BYTES_PER_S", 32.0 * 1024)
"""The lowest rate of a body in bytes per second. A slower body is refused with 408."""
_SHOWN_CHARS = 100
_LONGEST_LENGTH = 18  # A Content-Length has at most this number of digits.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
M = TypeVar("M", bound=BaseModel)
_SMALL_BYTES = 16 * 1024
"""Bodies with a Content-Length of up to this many bytes are read without reserving memory. The
number of connections limits the number of such bodies.
"""
FIELD = "image"
_TEXT_BYTES = 64 * 1024
"""The largest total size in bytes of the parts of a form that are not files."""
_MAX_FORM_FIELDS = 32
_PARAMETER = re.compile(rb';\s*([^=;\s]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;]*)')
"""A parameter of a Content-Disposition."""
_FILENAME_CHARSETS = ("utf-8", "iso-8859-1")
_FORM_CHARSETS = (*_FILENAME_CHARSETS, "utf8", "latin-1", "latin1", "us-ascii", "ascii")
"""The names by which a form may call its charset. Starlette would take any of Python's codecs, and
some of them need time that grows with the square of the text.
"""


@dataclass(frozen=True, slots=True)
class MinBodyRate:
    """The lowest rate of a body. The body may take `grace_s` seconds longer than at this rate."""

    grace_s: float
    min_bytes_per_s: float


async def joined(chunks: AsyncGenerator[bytes]) -> bytes:
    """Return the whole body. Raises ApiError 400 if the caller disconnects."""
    try:
        return b"".join([chunk async for chunk in chunks])
    except ClientDisconnect as error:
        raise _invalid("The body ended before it was complete.") from error


def expected_bytes(request: Request, *, max_bytes: int) -> int:
    """Return the length of the body, or the limit if there is no Content-Length.

    Raises ApiError 413 if the body is too long.
    """
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        return max_bytes
    if len(announced) > _LONGEST_LENGTH or int(announced) > max_bytes:
        raise too_large(max_bytes)
    return int(announced)


async def bounded(
    request: Request, *, max_bytes: int, min_rate: MinBodyRate
) -> AsyncGenerator[bytes]:
    """Yield the body in chunks as they arrive.

    Raises ApiError 413 as soon as the body is too large, ApiError 408 as soon as it is too slow,
    and ClientDisconnect if the caller disconnects.
    """
    give_up_at = asyncio.get_running_loop().time() + min_rate.grace_s
    size_bytes = 0
    more = True
    while more:
        try:
            async with asyncio.timeout_at(give_up_at + size_bytes / min_rate.min_bytes_per_s):
                message = await request.receive()
        except TimeoutError as error:
            raise _too_slow(min_rate) from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise too_large(max_bytes)
        yield chunk
        more = message.get("more_body", False)


def parse_json(body: bytes) -> Any:
    """Parse JSON. Raises ApiError 400 `invalid_json`."""
    if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
        raise _invalid(f"The body has more than {_MAX_CONTAINERS} opening brackets.")
    if body.count(b",") > _MAX_COMMAS:
        raise _invalid(f"The body has more than {_MAX_COMMAS} commas.")
    try:
        value = _DECODER.decode(body.decode())
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _invalid(str(error)) from error
    _require_shallow(value)
    if _SURROGATE.search(body):
        _require_text(value)
    return value


def require_json(request: Request) -> None:
    """Raise ApiError 415 if the media type is not JSON, or if the body is compressed."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "Send the body as Content-Type: application/json."
        raise unsupported(message, content_type)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        message = "Send the body without the header Content-Encoding."
        raise unsupported(message, encoding)


def unsupported(message: str, given: str) -> ApiError:
    """Build a 415 error. `given` is the value of the unsupported header."""
    return ApiError(415, "unsupported_media_type", message, details=given[:_SHOWN_CHARS])


def _require_shallow(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _require_text(value: Any) -> None:
    """Refuse half of a surrogate pair, which is valid JSON but cannot be stored as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _invalid("A text contains half of a surrogate pair.") from error


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


_DECODER = json.JSONDecoder(parse_constant=_constant, parse_float=_finite)


def _invalid(details: str) -> ApiError:
    return ApiError(400, "invalid_json", "The body is not valid JSON.", details=details)


def _too_deep() -> ApiError:
    return _invalid(f"The body has more than {MAX_DEPTH} levels of nested arrays and objects.")


def _too_slow(min_rate: MinBodyRate) -> ApiError:
    message = (
        f"The body arrives too slowly: send at least {min_rate.min_bytes_per_s:g} bytes per second."
    )
    return ApiError(408, "body_too_slow", message)


def too_large(max_bytes: int) -> ApiError:
    message = f"The body is larger than {max_bytes} bytes."
    return ApiError(413, "too_large", message, extra_info={"max_bytes": max_bytes})


class Bodies:
    """Reads request bodies, and limits the total size of all bodies in memory."""

    def __init__(self, threads: FairThreads, *, max_bytes: int, max_upload_bytes: int) -> None:
        self.max_bytes = max_bytes
        """The maximum size in bytes of a body, not counting its inline images."""
        self.max_upload_bytes = max_upload_bytes
        """The maximum size in bytes of an uploaded file."""
        self._max_image_bytes = max(max_bytes, _MAX_IMAGE_BYTES)
        self._min_rate = MinBodyRate(_GRACE_S, _MIN_BYTES_PER_S)
        self._turns = FairSemaphore(_MAX_HELD_BYTES, per_owner=max(1, _MAX_HELD_BYTES // 2))
        self._threads = threads

    @asynccontextmanager
    async def chunks(
        self, request: Request, owner: str, *, max_bytes: int
    ) -> AsyncGenerator[AsyncGenerator[bytes]]:
        """Yield the body in chunks. Memory is reserved for the body until the context ends.

        Raises Busy, ApiError 413 as soon as the body is too large, and ApiError 408 as soon as
        it is too slow.
        """
        size_bytes = expected_bytes(request, max_bytes=max_bytes)
        stream = bounded(request, max_bytes=max_bytes, min_rate=self._min_rate)
        if size_bytes <= _SMALL_BYTES:
            yield stream
            return
        async with self._turns.acquire(owner, size_bytes):
            yield stream

    @asynccontextmanager
    async def reserve_memory(self, owner: str, size_bytes: int) -> AsyncGenerator[None]:
        """Reserve memory for an answer, from the same total as for bodies. Raises Busy."""
        async with self._turns.acquire(owner, size_bytes):
            yield

    @asynccontextmanager
    async def json(
        self,
        request: Request,
        owner: str,
        *,
        max_bytes: int | None = None,
        of_any_type: bool = False,
    ) -> AsyncGenerator[tuple[bytes, Any]]:
        """Read and parse the body. Memory is reserved for the body until the context ends.

        `max_bytes` replaces the limit `self.max_bytes`. Raises ApiError 415 for another media type
        unless `of_any_type` is set, ApiError 400 `invalid_json`, and the errors of `chunks`.
        """
        if not of_any_type:
            require_json(request)
        async with self.chunks(request, owner, max_bytes=max_bytes or self.max_bytes) as chunks:
            body = await joined(chunks)
            is_quick = len(body) <= QUICK_BYTES
            yield body, await self._threads.run(owner, parse_json, body, is_quick=is_quick)

    def json_with_images(
        self, request: Request, owner: str
    ) -> AbstractAsyncContextManager[tuple[bytes, Any]]:
        """Read a JSON body that may contain inline images.

        The caller must check the size of the body without its images, by `excess_bytes` of
        `RequestCompiler.compile`.
        """
        return self.json(request, owner, max_bytes=self._max_image_bytes)

    async def model(self, request: Request, owner: str, model: type[M]) -> M:
        """Read the body as `model`. Raises RequestValidationError and the errors of `json`.

        FastAPI's own parsing is not used, because it has no limits and would run before the key is
        checked.
        """
        async with self.json(request, owner) as (body, content):
            return await self.validated(body, content, owner, model)

    async def validated(self, body: bytes, content: Any, owner: str, model: type[M]) -> M:
        """Validate the content of a body as `model`, in a thread if the body is large.

        Raises RequestValidationError.
        """
        is_quick = len(body) <= QUICK_BYTES
        return await self._threads.run(owner, validated, model, content, is_quick=is_quick)


def validated(model: type[M], content: Any) -> M:
    """Validate `content` as `model`. Raises RequestValidationError."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors) from error


class _FormParser(MultiPartParser):
    """Parses a form with files in `fields`. Files in `texts` are read as texts.

    Other files are dropped. A `filename*` (RFC 5987) takes precedence over a `filename`.
    """

    def __init__(
        self, *args: Any, fields: Collection[str], texts: Collection[str], **limits: Any
    ) -> None:
        super().__init__(*args, **limits)
        self._fields = {name.encode() for name in fields}
        self._texts = {name.encode() for name in texts}
        self._is_dropped = False

    def on_headers_finished(self) -> None:
        part = self._current_part
        disposition = part.content_disposition or b""
        found = {name.lower(): value for name, value in _PARAMETER.findall(disposition)}
        field = found.get(b"name", b"").strip(b'" ')
        self._is_dropped = False
        extended = found.get(b"filename*")
        if field not in self._fields and (extended or b"filename" in found):
            self._is_dropped = field not in self._texts
            part.content_disposition = b'form-data; name="' + field + b'"'
        elif extended and b"filename" not in found:
            part.content_disposition = disposition + b'; filename=""'
        super().on_headers_finished()
        if part.file is not None and extended and (name := _extended_name(extended)):
            part.file.filename = name

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if not self._is_dropped:
            super().on_part_data(data, start, end)

    def on_part_end(self) -> None:
        if not self._is_dropped:
            super().on_part_end()


def _extended_name(value: bytes) -> str | None:
    """Decode the value of a `filename*`; None if it is not valid."""
    charset, _, rest = value.strip(b'" ').decode("latin-1").partition("'")
    _, _, encoded = rest.partition("'")
    if charset.lower() not in _FILENAME_CHARSETS:
        return None
    try:
        return unquote_to_bytes(encoded).decode(charset)
    except UnicodeDecodeError:
        return None


@asynccontextmanager
async def read_form(
    bodies: Bodies, request: Request, owner: str, *, texts: Collection[str] = ()
) -> AsyncGenerator[tuple[str, bytes, FormData]]:
    """Read a form with one file. Yields the file's name, its bytes, and the form.

    For `texts` see `read_files`. Memory is reserved until the context ends. Raises Busy, ApiError
    400, 408, 413, 415.
    """
    async with read_files(bodies, request, owner, texts=texts) as form:
        name, data = await file_of(form, FIELD)
        yield name, data, form


@asynccontextmanager
async def read_files(
    bodies: Bodies,
    request: Request,
    owner: str,
    *,
    fields: Collection[str] = (FIELD,),
    texts: Collection[str] = (),
    max_files: int = 1,
) -> AsyncGenerator[FormData]:
    """Read a form with its files in memory, which is reserved until the context ends.

    The form has the files in `fields`. Programs also send texts as files. Those in `texts` become
    texts, and other files are dropped. All files together may be as large as two files of the
    largest size. Raises Busy, ApiError 400, 408, 413, 415.
    """
    max_bytes = bodies.max_upload_bytes
    _require_form(request)
    form_bytes = min(max_files, 2) * max_bytes + _TEXT_BYTES
    async with bodies.chunks(request, owner, max_bytes=form_bytes) as chunks:
        parser = _FormParser(
            request.headers,
            chunks,
            fields=fields,
            texts=texts,
            max_files=max_files,
            max_fields=_MAX_FORM_FIELDS,
            max_part_size=_TEXT_BYTES,
        )
        # With this size, all files are kept in memory and not on disk.
        parser.spool_max_size = form_bytes
        try:
            form = await _parsed(parser)
            if any((each.size or 0) > max_bytes for _, each in files_in(form)):
                raise too_large(max_bytes)
            yield form
        finally:
            # Starlette closes the files if parsing fails, but not if the form is incomplete.
            for file in parser._files_to_close_on_error:
                file.close()


def files_in(form: FormData) -> list[tuple[str, UploadFile]]:
    """Return each file of a form that has a name, with the name of its field."""
    items = form.multi_items()
    return [
        (field, each) for field, each in items if isinstance(each, UploadFile) and each.filename
    ]


async def file_of(form: FormData, field: str) -> tuple[str, bytes]:
    """Return the name and the bytes of a form's file. Raises ApiError 400."""
    part = form.get(field)
    if not isinstance(part, UploadFile) or not part.filename:
        raise _form_invalid(f"The form has no file named {field!r}.")
    return part.filename, await part.read()


async def _parsed(parser: MultiPartParser) -> FormData:
    """Parse a form. Raises ApiError 400, 408, 413."""
    try:
        return await parser.parse()
    except (MultiPartException, ValueError) as error:
        raise _form_invalid("The form cannot be read.", str(error)) from error
    except ClientDisconnect as error:
        raise _form_invalid("The form ended before it was complete.") from error


def _require_form(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    media_type, parameters = parse_options_header(content_type)
    if media_type != b"multipart/form-data":
        message = "Send the image as a file of a form (multipart/form-data)."
        raise unsupported(message, content_type)
    charset = parameters.get(b"charset", b"utf-8").decode("latin-1")
    if charset.lower() not in _FORM_CHARSETS:
        raise _form_invalid("The charset of a form must be UTF-8 or ISO-8859-1.", charset[:80])


def _form_invalid(message: str, details: str = "") -> ApiError:
    return ApiError(400, "invalid_upload", message, details=details)
