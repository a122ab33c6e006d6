"""One event stream of the HTTP API, read as it arrives; httpx waits for the end of an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from tests.support.patience import FACTOR

DEADLINE_S = 10.0 * FACTOR


@dataclass(frozen=True, slots=True)
class Received:
    """One Server-Sent Event; a comment has its text as `comment` alone."""

    event: str = ""
    id: str | None = None
    data: dict[str, Any] = field(default_factory=dict)
    comment: str | None = None


class Stream:
    """A client of one request. While `takes` is not set it reads nothing of the answer."""

    def __init__(self, body: bytes | None = None) -> None:
        self._sent = body
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_whole = False
        """Whether the answer ended properly."""
        self.takes = asyncio.Event()
        self.takes.set()
        self.last_id: str | None = None
        self._gone = asyncio.Event()
        self._unread = b""
        self._received: asyncio.Queue[Received] = asyncio.Queue()
        self.began = asyncio.Event()
        """Set when the answer has begun; later events are sent."""
        self.done = asyncio.Event()
        """Set when the application has ended."""

    async def next(self) -> Received:
        async with asyncio.timeout(DEADLINE_S):
            return await self._received.get()

    async def event(self) -> Received:
        """Return the next event that is not a comment."""
        while (received := await self.next()).comment is not None:
            pass
        return received

    async def names(self, count: int) -> list[str]:
        return [(await self.event()).event for _ in range(count)]

    async def end(self) -> list[Received]:
        """Return the events until the answer has ended."""
        async with asyncio.timeout(DEADLINE_S):
            await self.done.wait()
        return [self._received.get_nowait() for _ in range(self._received.qsize())]

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        if self._sent is not None:
            sent, self._sent = self._sent, None
            return {"type": "http.request", "body": sent, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        await self.takes.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.began.set()
        body = message.get("body", b"")
        self.body += body
        self.is_whole = not message.get("more_body", False)
        self._unread += body
        *whole, self._unread = self._unread.split(b"\n\n")
        for each in whole:
            self._note(each.decode())

    def _note(self, text: str) -> None:
        lines = [line.partition(": ")[::2] for line in text.splitlines()]
        fields = dict(lines)
        self.last_id = fields.get("id", self.last_id)
        if "" in fields:
            self._received.put_nowait(Received(comment=fields[""]))
        elif "data" in fields:
            self._received.put_nowait(
                Received(fields.get("event", ""), fields.get("id"), json.loads(fields["data"]))
            )


@asynccontextmanager
async def watching(
    app: FastAPI,
    path: str,
    key: str,
    *,
    last_event_id: str | None = None,
    server: tuple[str, int | None] = ("darkroom.test", None),
    body: bytes | None = None,
) -> AsyncGenerator[Stream]:
    """Open a stream; `path` may have a query. The client disconnects at the end.

    With a body, which is JSON, the request is a POST.
    """
    stream = Stream(body)
    headers = {"authorization": f"Bearer {key}"}
    if body is not None:
        headers["content-type"] = "application/json"
    if last_event_id is not None:
        headers["last-event-id"] = last_event_id
    scope = _scope(path, headers, server) | {"method": "GET" if body is None else "POST"}

    async def run() -> None:
        try:
            await app(scope, stream.receive, stream.send)
        finally:
            stream.done.set()

    task = asyncio.create_task(run())
    try:
        yield stream
    finally:
        stream.leave()
        with suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                await task


def _scope(path: str, headers: Mapping[str, str], server: tuple[str, int | None]) -> dict[str, Any]:
    plain, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "path": plain,
        "raw_path": plain.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("192.0.2.1", 1234),
        "server": server,
        "state": {},
    }
