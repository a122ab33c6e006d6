"""A real nats-server, a connected bus, and a client of nats-py beside it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import nats
import pytest
from nats.aio.client import Client

from events.bus.bus import Bus
from events.bus.nats_errors import NoAnswer
from events.errors import LogUnavailable
from local.nats_server import NatsServer

AnyBus = TypeVar("AnyBus", bound=Bus)


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


def connected(server: NatsServer, name: str = "test") -> AbstractAsyncContextManager[Bus]:
    return started(Bus(server.url, name=name))


@asynccontextmanager
async def started(bus: AnyBus) -> AsyncIterator[AnyBus]:
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def operator(server: NatsServer) -> AsyncIterator[Client]:
    """A separate client, as an operator would have it."""
    client = await nats.connect(server.url)
    try:
        yield client
    finally:
        await client.close()


async def stores(bus: Bus, subject: str = "canary.test") -> bool:
    """Whether the bus can store a message now."""
    try:
        return await bus.store(subject, b"", timeout_s=1) > 0
    except (LogUnavailable, NoAnswer):
        return False
