"""Streams as bytes, on a real nats-server."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from events.bus.bus import Bus
from events.bus.contents import log_contents
from events.bus.snapshot import restore, snapshot
from events.bus.streams import job_subject
from events.errors import LogUnavailable
from events.ids import new_id
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected, operator


async def test_a_stream_of_many_parts_is_put_back_as_it_was(bus: Bus, tmp_path: Path) -> None:
    ids = [new_id() for _ in range(30)]
    for job_id in ids:
        await bus.store(job_subject(job_id), os.urandom(100_000), timeout_s=5)
    await bus.purge("JOBS", job_subject(ids[-1]))
    async with snapshot(bus, "JOBS") as (description, parts):
        taken = [part async for part in parts]
    assert len(taken) > 20

    async def saved() -> AsyncGenerator[bytes]:
        for part in taken:
            yield part

    server = NatsServer(tmp_path / "other", preferred_port=0)
    server.start()
    other = Bus(server.url, name="operator", prepares_streams=False)
    other.start()
    await other.wait_connected()
    await restore(other, "JOBS", description, saved())
    before, after = log_contents(bus), log_contents(other)
    assert await after.stored(ids) == await before.stored(ids)
    assert await after.last_sequence() == 30
    with pytest.raises(LogUnavailable, match="already in use"):
        await restore(other, "JOBS", description, saved())
    await other.close()
    async with connected(server), operator(server) as client:
        info = await client.jetstream().stream_info("JOBS")
    assert info.config.subjects == ["jobs.*.*"]
    server.stop()
