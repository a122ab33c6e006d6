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


class UnreadBodies:
    """ASGI middleware: such an answer has `Connection: close`, and arrives all the same.

    It is around all that changes the length of an answer: a caller knows by that where it ends.
    """

    def __init__(self, app: ASGIApp, *, linger_s: float, most_bytes: int) -> None:
        """`linger_s`, `most_bytes`: how long, and how much, the rest of a body may come."""
        self._app = app
        self._linger_s = linger_s
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        is_read = False

        async def receive_noting() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def send_closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not is_read:
                MutableHeaders(scope=message)["connection"] = "close"
            is_end = message["type"] == "http.response.body" and not message.get("more_body", False)
            if is_end and not is_read:
                await send({**message, "more_body": True})
                await self._take_rest(receive_noting)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, receive_noting, send_closing)

    async def _take_rest(self, receive: Receive) -> None:
        size_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(self._linger_s):
                while size_bytes < self._most_bytes:
                    message = await receive()
                    if not message.get("more_body", False):  # its end, or the caller's
                        return
                    size_bytes += len(message.get("body", b""))


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
