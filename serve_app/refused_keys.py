"""Keeps an audit log of refused keys: the address, the key id, the route and the reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI, Request, Response

from serve_app.access.api_keys import parse
from serve_app.access.refusal_log import RefusalLog
from serve_app.auth import authorization_of
from serve_app.error_responses import ANSWERS
from serve_app.refusals import KeyRefused

_Handler = Callable[[Request, Exception], Awaitable[Response]]


def install(app: FastAPI, log: RefusalLog) -> None:
    """Log each refusal before it is answered. The exception handlers must be installed already."""
    for error_type in ANSWERS:
        if issubclass(error_type, KeyRefused):
            answer: Any = app.exception_handlers[error_type]
            app.add_exception_handler(error_type, _noting(log, answer))


def _noting(log: RefusalLog, answer: _Handler) -> _Handler:
    async def handle(request: Request, error: Exception) -> Response:
        response = await answer(request, error)
        log.note(_fields(request, error) | {"status": response.status_code})
        return response

    return handle


def _fields(request: Request, error: Exception) -> dict[str, object]:
    """Return the fields of a log line. They contain no secrets and no text of the caller."""
    fields = {
        "reason": str(error),
        "key_id": _key_id(request),
        # A websocket begins with a GET, but its scope has no method.
        "method": request.scope.get("method", "GET"),
        "route": getattr(request.scope.get("route"), "path", None),
        "peer": _peer(request),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _key_id(request: Request) -> str | None:
    """Return the id in the text of the key, if the key is well-formed."""
    parsed = parse(authorization_of(request).rpartition(" ")[2])
    return None if parsed is None else parsed.id


def _peer(request: Request) -> str | None:
    """Return the caller's address, if it is valid. It may be any text from `X-Forwarded-For`."""
    try:
        return None if request.client is None else str(ip_address(request.client.host))
    except ValueError:
        return None
