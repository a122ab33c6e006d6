"""An address of this machine that leads to a server and simulates network faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import Enum
from pathlib import Path

Place = int | Path
"""A port of this machine, or a unix socket."""


class Direction(Enum):
    REQUESTS = "to the server"
    ANSWERS = "from the server"


class Link:
    """A link that leads each connection to the first of `places` that accepts it."""

    def __init__(self, *places: Place) -> None:
        self._places = places
        self._is_cut = False
        self._swallowed: Direction | None = None
        self._passes = asyncio.Event()
        self._passes.set()
        self._delay_s = 0.0
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    def cut(self) -> None:
        """End all connections, and new ones at once, until `heal`."""
        self._is_cut = True
        self.drop()

    def swallow(self, direction: Direction) -> None:
        """Lose all data in that direction until `heal`. The connections stay open."""
        self._swallowed = direction

    def heal(self) -> None:
        """Work again. Connections that lost data are ended, so that it never arrives later."""
        if self._swallowed is not None:
            self.drop()
        self._swallowed, self._is_cut = None, False

    def lead_to(self, place: Place) -> None:
        """Lead new connections to another place and end the old ones, as after a change of a DNS
        name.
        """
        self._places = (place,)
        self._passes.set()
        self.drop()

    def fall_silent(self) -> None:
        """Transfer nothing and end no connection, as a machine without power does."""
        self._passes.clear()

    def speak(self) -> None:
        self._passes.set()

    def slow_down(self, delay_s: float) -> None:
        """Delay each transfer by this time."""
        self._delay_s = delay_s

    def drop(self) -> None:
        """End all connections."""
        for task in self._open:
            task.cancel()

    async def serve(self, near: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        writers = [near_writer]
        try:
            await self._passes.wait()
            if self._is_cut or (server := await self._connect()) is None:
                return
            far, far_writer = server
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(near, far_writer, Direction.REQUESTS))
                group.create_task(self._pass_on(far, near_writer, Direction.ANSWERS))
        except* (OSError, asyncio.CancelledError):
            pass  # the link is cut
        finally:
            self._open.discard(task)
            for writer in writers:
                writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for place in self._places:
            with suppress(OSError):
                if isinstance(place, Path):
                    return await asyncio.open_unix_connection(place)
                return await asyncio.open_connection("127.0.0.1", place)
        return None

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, direction: Direction
    ) -> None:
        while part := await source.read(65536):
            await self._passes.wait()
            if self._swallowed is direction:
                continue
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            target.write(part)
            await target.drain()
        with suppress(OSError, NotImplementedError):
            target.write_eof()


@asynccontextmanager
async def linked(*places: Place) -> AsyncIterator[Link]:
    """Run a link while the context lasts."""
    link = Link(*places)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        link.cut()
        link.speak()
