"""The streams of the log beside what else a NATS account has."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from events.bus.bus import Bus
from events.bus.streams import JOBS, job_subject
from events.ids import new_id
from events.streams.log_streams import LogStreams
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected, operator, stores


@pytest.mark.parametrize("name", [f"{JOBS}_20261101", "2026", f"{JOBS}_3"])
async def test_a_stream_of_others_is_none_of_the_log(nats_server: NatsServer, name: str) -> None:
    async with operator(nats_server) as client:
        js = client.jetstream()
        await js.add_stream(name=name, subjects=["orders.*"])
        async with connected(nats_server) as bus:
            assert await stores(bus, job_subject(new_id()))
        assert (await js.stream_info(name)).config.subjects == ["orders.*"]


async def test_a_stream_of_others_is_not_made_one_of_the_log(nats_server: NatsServer) -> None:
    async with operator(nats_server) as client:
        js = client.jetstream()
        await js.add_stream(name=f"{JOBS}_3", subjects=["orders.*"])
        bus = Bus(nats_server.url, name="test", log_streams=LogStreams(4))
        bus.start()
        await asyncio.wait_for(bus.wait_known(), 10)
        await bus.close()
        assert f"the stream {JOBS}_3 in NATS is another’s" in (bus.refusal or "")
        assert (await js.stream_info(f"{JOBS}_3")).config.subjects == ["orders.*"]


async def test_nothing_is_asked_of_the_whole_account(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    config = tmp_path / "nats" / "nats-server.conf"
    denied = 'user: service, permissions: { publish: { deny: ["$JS.API.STREAM.LIST"] } },'
    config.write_text(config.read_text().replace("user: service,", denied))
    os.kill(nats_server.pid, signal.SIGHUP)
    async with connected(nats_server) as bus:
        assert await stores(bus, job_subject(new_id()))
