"""ASGI middleware: query parameters, rate limits, request ids, and unread request bodies."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from contextvars import ContextVar
from difflib import get_close_matches
from itertools import islice
from typing import Any, get_args, get_origin
from uuid import uuid4

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.access.rates import Standing
from settings.constant import constant

_SHOWN = 50

logger = logging.getLogger(__name__)

POLICY, REMAINING = "RateLimit-Policy", "RateLimit"
_STATE = "rate_limits"
HEADER = "X-Request-ID"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._~:/+=@-]{1,128}")
_UNREAD_BODY_S = constant("UNREAD_BODY_S", 3.0)
"""Seconds for which an unread body is received and discarded before the connection closes. A caller
that still sends when the connection closes may lose the answer.
"""
_MAX_UNREAD_BODY_BYTES = constant("MAX_UNREAD_BODY_BYTES", 64 * 1024**2)
"""The largest number of bytes that are discarded of one body."""
_MAX_UNREAD_BODIES = constant("MAX_UNREAD_BODIES", 100)
"""The most bodies that are discarded at a time. With more bodies, connections close at once."""
_SMALL_BYTES = 32 * 1024
"""The largest answer whose end is delayed. Such an answer fits into the buffers of its connection,
so sending it does not block.
"""


def require_known_query(request: Request) -> None:
    """Raise RequestValidationError for unknown and repeated query parameters."""
    if not request.scope["query_string"]:
        return
    route: APIRoute = request.scope["route"]
    known = {field.alias: field.field_info.annotation for field in route.dependant.query_params}
    given = Counter(name for name, _ in request.query_params.multi_items())
    wrong = (
        name
        for name, count in given.items()
        if name not in known or (count > 1 and not _is_list(known[name]))
    )
    if errors := [_error(name, known) for name in islice(wrong, _SHOWN)]:
        raise RequestValidationError(errors)


def _is_list(annotation: Any) -> bool:
    return any(list in {each, get_origin(each)} for each in (annotation, *get_args(annotation)))


def _error(name: str, known: Collection[str]) -> dict[str, Any]:
    if name in known:
        return {
            "type": "repeated_parameter",
            "loc": ("query", name),
            "msg": "the parameter may be sent only once",
        }
    near = get_close_matches(name, known, n=1)
    if near:
        message = f"there is no such parameter; did you mean {near[0]}?"
    elif known:
        message = f"there is no such parameter; the parameters are {', '.join(known)}"
    else:
        message = "there is no such parameter; this path has no parameters"
    return {"type": "unknown_parameter", "loc": ("query", name), "msg": message}


class RateLimits:
    """ASGI middleware that adds the headers from `note_limits` to answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope["state"] = dict(scope.get("state", ()))

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start" and _STATE in state:
                MutableHeaders(scope=message).update(state[_STATE])
            await send(message)

        await self._app(scope, receive, send_with_limits)


def note_limits(request: Request, standings: Iterable[Standing]) -> None:
    """Set the rate limit headers that `RateLimits` adds to the answer to this request."""
    policies, remaining = [], []
    for each in standings:
        name = each.limited.name.lower()
        policies.append(f'"{name}";q={each.quota};w={each.window_s}')
        remaining.append(f'"{name}";r={each.left};t={each.whole_in_s}')
    if policies:
        headers = {POLICY: ", ".join(policies), REMAINING: ", ".join(remaining)}
        setattr(request.state, _STATE, headers)


_current: ContextVar[str | None] = ContextVar("request_id", default=None)


class RequestIds:
    """ASGI middleware that adds the id of a request to its answer.

    An id that the caller sent is replaced if it is too long or has characters that a log line would
    have to quote.
    """

    def __init__(self, app: ASGIApp, *, are_requests_logged: bool, is_in_serve: bool) -> None:
        """With `is_in_serve`, Ray Serve adds the header, which a second header could contradict."""
        self._app = app
        self._are_requests_logged = are_requests_logged
        self._is_in_serve = is_in_serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        id = given if _WELL_FORMED.fullmatch(given) else uuid4().hex
        token, began, status = _current.set(id), time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                if not self._is_in_serve:
                    MutableHeaders(scope=message)[HEADER] = id
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            if self._are_requests_logged:
                _log(scope, status, time.perf_counter() - began)
            _current.reset(token)


class RequestIdFilter(logging.Filter):
    """Adds the request id to log lines that are written for a request."""

    def filter(self, record: logging.LogRecord) -> bool:
        if (id := _current.get()) is not None:
            record.x_request_id = id
        return True


def _log(scope: Scope, status: int, took_s: float) -> None:
    """Log a request with the path template of its route, because real paths may contain tokens."""
    fields = {
        "action": "request",
        "method": scope["method"],
        "route": getattr(scope.get("route"), "path", "-"),
        "status": status,
        "took_ms": round(took_s * 1000),
    }
    logger.info("answered", extra=fields)


class UnreadBodies:
    """ASGI middleware for answers that are sent before the whole request body was read.

    Such an answer gets the header `Connection: close`. The end of a small answer is delayed until
    the rest of the request body is discarded or a limit is reached, so that the client receives the
    answer before the connection closes. The client finds the end of the answer by its length, so
    all middleware that changes the length of answers must be inside this middleware.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        linger_s: float | None = None,
        max_bytes: int | None = None,
        max_bodies: int = _MAX_UNREAD_BODIES,
    ) -> None:
        """`linger_s` and `max_bytes` limit each discarded body, `max_bodies` those at a time."""
        self._app = app
        self._linger_s = _UNREAD_BODY_S if linger_s is None else linger_s
        self._most_bytes = _MAX_UNREAD_BODY_BYTES if max_bytes is None else max_bytes
        self._most = max_bodies
        self._discarding = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        is_read = has_begun = is_end_held = False

        async def receive_noting() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def send_closing(message: Message) -> None:
            nonlocal has_begun, is_end_held
            if message["type"] == "http.response.start" and not is_read:
                MutableHeaders(scope=message)["connection"] = "close"
            if message["type"] == "http.response.body":
                if not is_read and not has_begun and self._delays_end(message):
                    message, is_end_held = {**message, "more_body": True}, True
                has_begun = True
            await send(message)

        await self._app(scope, receive_noting, send_closing)
        if is_end_held:
            if not is_read:
                await self._discard_body(receive)
            await send({"type": "http.response.body", "body": b""})

    def _delays_end(self, message: Message) -> bool:
        """Return whether to delay the end of an answer. `message` is the first part of its body."""
        is_whole = not message.get("more_body", False)
        is_small = len(message.get("body", b"")) <= _SMALL_BYTES
        return is_whole and is_small and self._discarding < self._most

    async def _discard_body(self, receive: Receive) -> None:
        size_bytes, self._discarding = 0, self._discarding + 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger_s):
                    while size_bytes < self._most_bytes:
                        message = await receive()
                        # Without `more_body`, the body has ended or the caller has disconnected.
                        if not message.get("more_body", False):
                            return
                        size_bytes += len(message.get("body", b""))
        finally:
            self._discarding -= 1


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
