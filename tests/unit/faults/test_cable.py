"""The cable passes on, swallows and is cut, and what it swallowed never arrives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.faults.parts.cable import Cable, Direction


@pytest.fixture
async def heard() -> AsyncIterator[tuple[list[bytes], int]]:
    """What came to a server that echoes, and the server's port."""
    pieces: list[bytes] = []

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            pieces.append(data)
            self.transport.write(data)

    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    yield pieces, server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def cable(heard: tuple[list[bytes], int]) -> AsyncIterator[Cable]:
    cable = Cable(lambda: [heard[1]])
    await cable.start()
    yield cable
    await cable.close()


async def ask(cable: Cable, text: bytes) -> bytes:
    """The answer; empty where the connection is closed, or nothing comes for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cable.port)
    try:
        writer.write(text)
        async with asyncio.timeout(0.2):
            return await reader.read(100)
    except (TimeoutError, OSError):
        return b""
    finally:
        writer.transport.abort()


async def test_it_passes_on_both_ways(cable: Cable) -> None:
    assert await ask(cable, b"one") == b"one"


async def test_an_answer_is_swallowed_and_the_request_is_not(
    cable: Cable, heard: tuple[list[bytes], int]
) -> None:
    cable.swallow(Direction.ANSWERS)
    assert await ask(cable, b"one") == b""
    assert heard[0] == [b"one"]
    cable.heal()
    assert await ask(cable, b"two") == b"two"


async def test_a_request_is_swallowed(cable: Cable, heard: tuple[list[bytes], int]) -> None:
    cable.swallow(Direction.REQUESTS)
    assert await ask(cable, b"one") == b""
    assert heard[0] == []


async def test_what_is_cut_refuses_until_it_is_healed(cable: Cable) -> None:
    cable.cut()
    assert await ask(cable, b"one") == b""
    cable.heal()
    assert await ask(cable, b"two") == b"two"
