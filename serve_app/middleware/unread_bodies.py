"""Closes the connection of a request that is answered before its body was read.

Otherwise the rest of the body may come for as long as its sender likes. It is thrown away for a
while before that: a connection that is closed while more comes is reset, and the answer may be lost
with it (RFC 9112, section 9.6).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from settings.http import HttpSettings

_SMALL_BYTES = 32 * 1024
"""An answer of that size fits into the buffers of its connection, so to send its end never waits:
meanwhile nobody would take what comes."""


class UnreadBodies:
    """ASGI middleware: such an answer has `Connection: close`, and if it is small it arrives.

    It is around all that changes the length of an answer: a caller knows by that where it ends.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._app = app
        self._linger_s = settings.unread_body_s
        self._most_bytes = settings.max_unread_body_bytes
        self._most = settings.max_unread_bodies
        self._taken = 0
        """How many are thrown away at the moment."""

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
                if not is_read and not has_begun and self._waits_behind(message):
                    message, is_end_held = {**message, "more_body": True}, True
                has_begun = True
            await send(message)

        await self._app(scope, receive_noting, send_closing)
        if is_end_held:
            if not is_read:
                await self._throw_away(receive)
            await send({"type": "http.response.body", "body": b""})

    def _waits_behind(self, message: Message) -> bool:
        """Whether its connection is closed later; `message` is the first of the answer's body."""
        is_whole = not message.get("more_body", False)
        is_small = len(message.get("body", b"")) <= _SMALL_BYTES
        return is_whole and is_small and self._taken < self._most

    async def _throw_away(self, receive: Receive) -> None:
        size_bytes, self._taken = 0, self._taken + 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger_s):
                    while size_bytes < self._most_bytes:
                        message = await receive()
                        if not message.get("more_body", False):  # its end, or the caller's
                            return
                        size_bytes += len(message.get("body", b""))
        finally:
            self._taken -= 1


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
