"""Keeps an audit log of refused keys: who came, with which key, to which route, and why not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from typing import Any

from fastapi import FastAPI, Request, Response

from serve_app.access.api_keys import parse
from serve_app.access.refusal_log import RefusalLog
from serve_app.auth import authorization_of
from serve_app.errors import ANSWERS
from serve_app.refusals import KeyRefused

_Handler = Callable[[Request, Exception], Awaitable[Response]]


def install(app: FastAPI, log: RefusalLog) -> None:
    """Note each refusal before it is answered. The handlers of the answers are there already."""
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
    """Nothing in it is a text of the caller's choice, and no part of a secret."""
    fields = {
        "reason": str(error),
        "key_id": _key_id(request),
        "method": request.scope.get("method", "GET"),  # with which a websocket begins
        "route": getattr(request.scope.get("route"), "path", None),
        "peer": _peer(request),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _key_id(request: Request) -> str | None:
    """The id that the key itself says, if it is well-formed."""
    parsed = parse(authorization_of(request).rpartition(" ")[2])
    return None if parsed is None else parsed.id


def _peer(request: Request) -> str | None:
    """Where the request comes from. The server puts there what `X-Forwarded-For` says, if a caller
    or a proxy has sent one, so it may be any text.
    """
    try:
        return None if request.client is None else str(ip_address(request.client.host))
    except ValueError:
        return None
