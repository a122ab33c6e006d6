"""The callbacks role on a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.bus.bus import Bus
from local.nats_server import NatsServer
from tests.support.callbacks.role import World
from tests.support.database import database_in


@pytest.fixture
async def world(nats_server: NatsServer, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with database_in(tmp_path) as database:
        yield World(nats_server, bus, database)
