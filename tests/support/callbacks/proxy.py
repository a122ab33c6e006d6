"""An outbound proxy on a real socket, which accepts CONNECT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ConnectProxy:
    """Connects its clients to the addresses that they ask for, or answers `refusal` instead."""

    refusal: bytes | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    """The headers of each CONNECT, with its target under `target`."""
    port: int = 0
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if task := asyncio.current_task():
            self.tasks.add(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            await self._tunnel(reader, writer)
        writer.close()

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *lines = head.rstrip().split("\r\n")
        method, target, _ = line.split(" ")
        assert method == "CONNECT"
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
        self.requests.append({"target": target, **headers})
        if self.refusal is not None:
            writer.write(self.refusal)
            await writer.drain()
            return
        host, _, port = target.rpartition(":")
        there = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        finally:
            there[1].close()


@asynccontextmanager
async def running_proxy(refusal: bytes | None = None) -> AsyncGenerator[ConnectProxy]:
    proxy = ConnectProxy(refusal)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
        proxy.port = server.sockets[0].getsockname()[1]
        yield proxy
        for task in proxy.tasks:
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
