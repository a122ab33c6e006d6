"""One websocket of the HTTP API as a client has it, without a server or network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from tests.support.edge_services import URL
from tests.support.patience import FACTOR

_PATIENCE_S = 5.0 * FACTOR


class Websocket:
    def __init__(self) -> None:
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        """The messages that the application has sent."""
        self._received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.reading = asyncio.Event()
        """While it is cleared, the client reads nothing."""
        self.reading.set()
        self.status: int | None = None
        """The status of the answer to a refused handshake."""
        self.headers: list[tuple[str, str]] = []
        self.close_code: int | None = None

    async def receive(self) -> dict[str, Any]:
        return await self._received.get()

    async def send(self, message: dict[str, Any]) -> None:
        await self.reading.wait()
        match message["type"]:
            case "websocket.http.response.start":
                self.status = message["status"]
                self.headers = [
                    (name.decode(), value.decode()) for name, value in message["headers"]
                ]
            case "websocket.close":
                self.close_code = message["code"]
            case "websocket.send":
                await self.sent.put(message)

    def say(self, **message: Any) -> None:
        self._received.put_nowait({"type": "websocket.receive", **message})

    def say_json(self, value: object) -> None:
        self.say(text=json.dumps(value))

    def connect(self) -> None:
        self._received.put_nowait({"type": "websocket.connect"})

    def hang_up(self) -> None:
        self._received.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def next(self) -> Any:
        """Return the next message: JSON as a value, else bytes."""
        async with asyncio.timeout(_PATIENCE_S):
            message = await self.sent.get()
        text = message.get("text")
        return message["bytes"] if text is None else json.loads(text)

    async def until(self, type: str) -> list[Any]:
        """Return every message up to the first of this type."""
        messages = [await self.next()]
        while isinstance(messages[-1], bytes) or messages[-1]["type"] != type:
            messages.append(await self.next())
        return messages


@asynccontextmanager
async def connected(
    app: FastAPI, path: str, *, headers: dict[str, str] | None = None
) -> AsyncGenerator[Websocket]:
    """Open a websocket; the handshake may have been refused."""
    websocket, parts = Websocket(), urlsplit(path)
    given = {"host": urlsplit(URL).netloc, **(headers or {})}
    scope = {
        "type": "websocket",
        "path": parts.path,
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
        "scheme": "ws",
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": None,
    }
    websocket.connect()
    serving = asyncio.create_task(app(scope, websocket.receive, websocket.send))  # type: ignore[arg-type]
    try:
        yield websocket
    finally:
        websocket.reading.set()
        websocket.hang_up()
        async with asyncio.timeout(_PATIENCE_S):
            await serving
