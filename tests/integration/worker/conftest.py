"""A bench on a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import JobQueue
from events.log import JobWriter
from storage.images import ImageStore
from tests.support.worker import LANE, LEASE_S, Bench


@pytest.fixture
async def bench(bus: Bus, tmp_path: Path) -> AsyncIterator[Bench]:
    log = JetStreamLog(bus)
    queue = JobQueue(bus, lease_s=LEASE_S)
    async with queue.consume("default", LANE) as lane:
        images = ImageStore((tmp_path / "images").as_uri())
        yield Bench(bus, log, JobWriter(log), queue, lane, images)
