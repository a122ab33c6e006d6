"""Reads the body of a request: JSON of bounded size, which the service can write again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncGenerator
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from serve_app.errors import ApiError

M = TypeVar("M", bound=BaseModel)

MAX_DEPTH = 100
"""Levels of nested arrays and objects. The wire form of an event may have up to 200."""

_LONGEST_LENGTH = 18  # digits of a Content-Length; more are refused without conversion
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


async def read_body(request: Request, *, max_bytes: int) -> bytes:
    """The whole body. Raises ApiError: 415 for another media type, 413 as `bounded` does."""
    _require_json(request)
    try:
        return b"".join([chunk async for chunk in bounded(request, max_bytes=max_bytes)])
    except ClientDisconnect as error:
        raise _invalid("The body ended before it was complete.") from error


async def bounded(request: Request, *, max_bytes: int) -> AsyncGenerator[bytes]:
    """The body in chunks, as it arrives. Raises ApiError 413 as soon as it is too large."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > _LONGEST_LENGTH or int(announced) > max_bytes):
        raise too_large(max_bytes)
    size_bytes = 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > max_bytes:
            raise too_large(max_bytes)
        yield chunk


def parse_json(body: bytes) -> Any:
    """Raises no other error than ApiError 400 `invalid_json`."""
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


async def read_as(request: Request, model: type[M], *, max_bytes: int) -> M:
    """The body as `model`. FastAPI would read it without a bound, and before it asks for a key.

    Raises ApiError as `read_body` and `parse_json` do, RequestValidationError.
    """
    content = parse_json(await read_body(request, max_bytes=max_bytes))
    try:
        return model.model_validate(content)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors) from error


def _require_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "Send the body as Content-Type: application/json."
        raise ApiError(415, "unsupported_media_type", message, details=content_type)
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        message = "Send the body without Content-Encoding."
        raise ApiError(415, "unsupported_media_type", message, details=encoding)


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


def too_large(max_bytes: int) -> ApiError:
    message = f"The body is larger than {max_bytes} bytes."
    return ApiError(413, "too_large", message, extra_info={"max_bytes": max_bytes})
