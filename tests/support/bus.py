"""A real nats-server and a connected bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from events.bus.bus import Bus
from serve_app.local.nats_server import NatsServer


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path / "nats", preferred_port=0)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[Bus]:
    async with connected(nats_server) as bus:
        yield bus


@asynccontextmanager
async def connected(server: NatsServer, name: str = "test") -> AsyncIterator[Bus]:
    bus = Bus(server.url, name=name)
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    try:
        yield bus
    finally:
        await bus.close()
