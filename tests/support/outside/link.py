"""An address of this machine that leads to a server, and does what networks do on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

Place = int | Path
"""A port of this machine, or a unix socket."""


class Link:
    """Starts by leading to `place`. What it is told counts for connections that are there, too."""

    def __init__(self, place: Place) -> None:
        self.place: Place | None = place
        self._passes = asyncio.Event()
        self._passes.set()
        self._delay_s = 0.0
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0
        self.connections = 0
        """How many there have been."""

    def cut(self) -> None:
        """Connections end, and new ones end at once."""
        self.place = None
        self._drop()

    def lead_to(self, place: Place) -> None:
        """As a name does whose address changes: new connections go there, the old ones end."""
        self.place = place
        self._passes.set()
        self._drop()

    def fall_silent(self) -> None:
        """As a machine without power does: nothing comes, and no connection ends."""
        self._passes.clear()

    def speak(self) -> None:
        self._passes.set()

    def slow_down(self, delay_s: float) -> None:
        """Each part of what is sent comes so much later."""
        self._delay_s = delay_s

    def _drop(self) -> None:
        for task in self._open:
            task.cancel()

    async def serve(self, near: asyncio.StreamReader, near_writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        writers = [near_writer]
        try:
            await self._passes.wait()
            if self.place is None:
                return
            far, far_writer = await _connect(self.place)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(near, far_writer))
                group.create_task(self._pass_on(far, near_writer))
        except* (OSError, asyncio.CancelledError):
            pass  # it is cut
        finally:
            self._open.discard(task)
            for writer in writers:
                writer.transport.abort()

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while part := await source.read(65536):
            await self._passes.wait()
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            target.write(part)
            await target.drain()
        with suppress(OSError, NotImplementedError):
            target.write_eof()


async def _connect(place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(place, Path):
        return await asyncio.open_unix_connection(place)
    return await asyncio.open_connection("127.0.0.1", place)


@asynccontextmanager
async def linked(place: Place) -> AsyncIterator[Link]:
    """It lasts as long as the context."""
    link = Link(place)
    server = await asyncio.start_server(link.serve, "127.0.0.1", 0)
    link.port = server.sockets[0].getsockname()[1]
    try:
        yield link
    finally:
        server.close()
        link.cut()
        link.speak()
