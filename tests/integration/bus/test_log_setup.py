"""The streams of the log beside what else a NATS account has, and a log that is refused."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from events.bus.bus import Bus
from events.bus.streams import JOBS, job_subject
from events.ids import new_id
from events.streams.log_streams import LogStreams
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected, operator, stores
from tests.support.polling import eventually


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


async def test_the_one_stream_of_others_is_not_made_the_log(nats_server: NatsServer) -> None:
    async with operator(nats_server) as client:
        js = client.jetstream()
        await js.add_stream(name=JOBS, subjects=["orders.*"])
        for prepares in (True, False):
            bus = Bus(nats_server.url, name="test", prepares_streams=prepares)
            bus.start()
            await asyncio.wait_for(bus.wait_known(), 10)
            await bus.close()
            assert f"the stream {JOBS} in NATS is another’s" in (bus.refusal or "")
        assert (await js.stream_info(JOBS)).config.subjects == ["orders.*"]
        async with connected(nats_server, log_streams=4) as bus:  # whose names are not taken
            assert await stores(bus, job_subject(new_id()))


async def test_nothing_is_asked_of_the_whole_account(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    config = tmp_path / "nats" / "nats-server.conf"
    denied = 'user: service, permissions: { publish: { deny: ["$JS.API.STREAM.LIST"] } },'
    config.write_text(config.read_text().replace("user: service,", denied))
    os.kill(nats_server.pid, signal.SIGHUP)
    async with connected(nats_server) as bus:
        assert await stores(bus, job_subject(new_id()))


# A log that is refused, and what becomes of that.


@asynccontextmanager
async def refused(server: NatsServer, *, prepares: bool) -> AsyncIterator[Bus]:
    """As several streams, where it is one that holds an event."""
    async with connected(server) as one:
        assert await stores(one, job_subject(new_id()))
    bus = Bus(server.url, name="test", log_streams=LogStreams(4), prepares_streams=prepares)
    bus.start()
    try:
        await asyncio.wait_for(bus.wait_known(), 10)
        assert bus.refusal is not None
        yield bus
    finally:
        await bus.close()


@pytest.mark.parametrize("prepares", [True, False])
async def test_a_log_that_was_mended_is_refused_no_longer(
    nats_server: NatsServer, prepares: bool
) -> None:
    async with refused(nats_server, prepares=prepares) as bus, operator(nats_server) as client:
        await client.jetstream().delete_stream(JOBS)
        await asyncio.wait_for(bus.wait_connected(), 20)
        assert bus.refusal is None


@pytest.mark.parametrize("prepares", [True, False])
async def test_a_log_that_does_not_answer_is_not_refused(
    nats_server: NatsServer, prepares: bool
) -> None:
    async with refused(nats_server, prepares=prepares) as bus:
        nats_server.stop()
        await eventually(lambda: bus.refusal is None)
        assert not bus.is_connected
        nats_server.start()
        await eventually(lambda: bus.refusal is not None)
        assert not bus.is_connected


async def test_a_log_that_stays_refused_is_looked_at_less_often(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def note(at_most_s: float) -> None:
        pauses.append(at_most_s)
        await asyncio.sleep(0.01)

    monkeypatch.setattr("events.bus.connection.pause", note)
    async with refused(nats_server, prepares=False) as bus, operator(nats_server) as client:
        pauses.clear()
        await eventually(lambda: len(pauses) > 5)
        assert pauses[-2:] == [15.0, 15.0]
        await client.jetstream().delete_stream(JOBS)
        await asyncio.wait_for(bus.wait_connected(), 10)
        await eventually(lambda: pauses[-1] == 1.0)
