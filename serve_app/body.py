"""Reads the body of a request: JSON of bounded size, which the service can write again."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, NoReturn

from fastapi import Request
from starlette.requests import ClientDisconnect

from serve_app.api_error import ApiError

MAX_DEPTH = 100
"""Levels of nested arrays and objects. The wire form of an event may have up to 200."""

_MAX_CONTAINERS = 2**16
"""Arrays and objects. The parser makes them without a pause, during which no thread runs."""
_MAX_COMMAS = 2**18
"""They part values and keys, each of which takes the parser time, too, and up to hundreds of bytes.
Base64 has none, so only a body that is meant to bring images along can come near."""
_SHOWN_CHARS = 100
_LONGEST_LENGTH = 18  # digits of a Content-Length; more are refused without conversion
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(frozen=True, slots=True)
class Pace:
    """How slowly a body may come: it is given up once it is `grace_s` behind its lowest rate."""

    grace_s: float
    min_bytes_per_s: float


async def joined(chunks: AsyncGenerator[bytes]) -> bytes:
    """The whole body. Raises ApiError 400 where the caller hangs up."""
    try:
        return b"".join([chunk async for chunk in chunks])
    except ClientDisconnect as error:
        raise _invalid("The body ended before it was complete.") from error


def expected_bytes(request: Request, *, max_bytes: int) -> int:
    """How long the body is, or at most where that is not announced. Raises ApiError 413."""
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        return max_bytes
    if len(announced) > _LONGEST_LENGTH or int(announced) > max_bytes:
        raise too_large(max_bytes)
    return int(announced)


async def bounded(request: Request, *, max_bytes: int, pace: Pace) -> AsyncGenerator[bytes]:
    """The body in chunks, as it arrives.

    Raises ApiError: 413 as soon as it is too large, 408 as soon as it is too slow. Raises
    ClientDisconnect where the caller hangs up.
    """
    give_up_at = asyncio.get_running_loop().time() + pace.grace_s
    size_bytes = 0
    more = True
    while more:
        try:
            async with asyncio.timeout_at(give_up_at + size_bytes / pace.min_bytes_per_s):
                message = await request.receive()
        except TimeoutError as error:
            raise _too_slow(pace) from error
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise too_large(max_bytes)
        yield chunk
        more = message.get("more_body", False)


def parse_json(body: bytes) -> Any:
    """Raises no other error than ApiError 400 `invalid_json`."""
    if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
        raise _invalid(f"It has more than {_MAX_CONTAINERS} opening brackets.")
    if body.count(b",") > _MAX_COMMAS:
        raise _invalid(f"It has more than {_MAX_COMMAS} commas.")
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
    """Raises ApiError 415 for another media type."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "Send the body as Content-Type: application/json."
        raise unsupported(message, content_type)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        message = "Send the body without Content-Encoding."
        raise unsupported(message, encoding)


def unsupported(message: str, given: str) -> ApiError:
    """`given`: the header that is not taken."""
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
    """Half of a surrogate pair is valid JSON, but cannot be stored as UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise _invalid("A text has half of a surrogate pair.") from error


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
    return _invalid(f"More than {MAX_DEPTH} arrays and objects are nested.")


def _too_slow(pace: Pace) -> ApiError:
    message = f"The body comes too slowly: send {pace.min_bytes_per_s:g} bytes a second at least."
    return ApiError(408, "body_too_slow", message)


def too_large(max_bytes: int) -> ApiError:
    message = f"The body is larger than {max_bytes} bytes."
    return ApiError(413, "too_large", message, extra_info={"max_bytes": max_bytes})
