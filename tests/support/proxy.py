"""An outbound proxy on a real socket, which takes CONNECT."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType


@dataclass
class ConnectProxy:
    """Connects whoever asks to the address asked for, unless `refusal` is its answer."""

    refusal: bytes | None = None
    requests: list[dict[str, str]] = field(default_factory=list)
    """Of each CONNECT the headers, its target under `target`."""

    async def __aenter__(self) -> ConnectProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._tasks: set[asyncio.Task[None]] = set()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await self._tunnel(reader, writer)
        finally:
            self._tasks.discard(task)
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


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
