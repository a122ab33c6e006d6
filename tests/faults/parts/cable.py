"""A TCP proxy before the event log, which can be cut, or swallow what goes in one direction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum

_PIECE_BYTES = 64 * 1024


class Direction(Enum):
    REQUESTS = "to the server"
    ANSWERS = "from the server"


class Cable:
    """Listens on `port` and connects each caller to the first server that takes the connection.

    What is swallowed never arrives later: the connections are cut before anything is passed on
    again.
    """

    def __init__(self, servers: Callable[[], Sequence[int]]) -> None:
        """`servers`: the ports to try, in order."""
        self._servers = servers
        self._server: asyncio.Server | None = None
        self._callers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._swallowed: Direction | None = None
        self._is_cut = False
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> None:
        """Close every connection, and refuse new ones until `heal`."""
        self._is_cut = True
        self._hang_up()

    def swallow(self, direction: Direction) -> None:
        """Pass nothing on in that direction until `heal`. The connections stay open."""
        self._swallowed = direction

    def heal(self) -> None:
        if self._swallowed is not None:
            self._hang_up()
        self._swallowed, self._is_cut = None, False

    def _hang_up(self) -> None:
        for writer in self._callers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._callers.add(writer)
        try:
            if self._is_cut or (server := await self._connect()) is None:
                return
            answers, requests = server
            passing = {
                asyncio.create_task(self._pass(reader, requests, Direction.REQUESTS)),
                asyncio.create_task(self._pass(answers, writer, Direction.ANSWERS)),
            }
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                requests.transport.abort()
                for task in passing:
                    task.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
        finally:
            self._callers.discard(writer)
            writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in self._servers():
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        with suppress(OSError):
            while piece := await reader.read(_PIECE_BYTES):
                if self._swallowed is direction:
                    continue
                writer.write(piece)
                await writer.drain()
