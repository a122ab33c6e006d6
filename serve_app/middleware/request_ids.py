"""The id of a request, `X-Request-ID`: the caller's or a fresh one, in each line of its log.

It names one call. The `request_id` of an answer names the job, for as long as there is one.
"""

from __future__ import annotations

import logging
import re
import time
from contextvars import ContextVar
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

HEADER = "X-Request-ID"

_WELL_FORMED = re.compile(r"[A-Za-z0-9._~:/+=@-]{1,128}")
_current: ContextVar[str | None] = ContextVar("request_id", default=None)


class RequestIds:
    """ASGI middleware: answers each request with its id.

    An id that is too long, or that has characters which a log would have to quote, is replaced.
    """

    def __init__(self, app: ASGIApp, *, are_requests_logged: bool, is_in_serve: bool) -> None:
        """`is_in_serve`: Serve gives a request without an id one, and answers each with its id as
        it came; a second header would contradict that one.
        """
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
    """Adds the id of the request, where a line is written for one."""

    def filter(self, record: logging.LogRecord) -> bool:
        if (id := _current.get()) is not None:
            record.x_request_id = id
        return True


def _log(scope: Scope, status: int, took_s: float) -> None:
    """The path of the route and no query: what is in their place may be a name or a token."""
    fields = {
        "action": "request",
        "method": scope["method"],
        "route": getattr(scope.get("route"), "path", "-"),
        "status": status,
        "took_ms": round(took_s * 1000),
    }
    logger.info("answered", extra=fields)
