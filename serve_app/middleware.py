"""ASGI middleware: request ids, and unread request bodies."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from contextlib import suppress
from contextvars import ContextVar
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from settings.constant import constant

logger = logging.getLogger(__name__)

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
