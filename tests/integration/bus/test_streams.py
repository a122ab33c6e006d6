"""Streams on a real nats-server that are lost, and made again."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import nats.js.api
import pytest
from nats.aio.client import Client

from events.bus.bus import Bus
from events.bus.health import warn_if_size_differs
from events.bus.queues import JobQueue
from events.bus.streams import CANARY, JOBS, QUEUE, STREAMS
from events.errors import LogUnavailable
from local.nats_server import NatsServer
from tests.support.bus import operator, stores
from tests.support.events import LATER
from tests.support.polling import eventually


async def stream_names(client: Client) -> set[str]:
    infos = await client.jetstream().streams_info()
    return {info.config.name or "" for info in infos}


async def test_a_stream_that_was_lost_is_made_again(nats_server: NatsServer, bus: Bus) -> None:
    queue = JobQueue(bus, lease_s=30)
    made_at = await queue.made_at()
    async with operator(nats_server) as client:
        await client.jetstream().delete_stream(QUEUE)
    with pytest.raises(LogUnavailable):
        async with queue.consume("default", 1):
            pass

    async def queued() -> bool:
        try:
            await queue.add("default", 1, "a-job", deadline=LATER)
        except LogUnavailable:
            return False
        return True

    await eventually(queued)
    assert await queue.made_at() > made_at
    async with queue.consume("default", 1) as lane:
        assert len(await lane.next(most=1, timeout_s=2)) == 1


async def test_a_stream_that_only_a_writer_misses_is_made_again(
    nats_server: NatsServer, bus: Bus
) -> None:
    async with operator(nats_server) as client:
        await client.jetstream().delete_stream(CANARY)
    await eventually(lambda: stores(bus))


@pytest.mark.parametrize(
    "ask",
    [
        lambda bus: bus.pending(QUEUE, "queue.>"),
        lambda bus: bus.count(QUEUE, "queue.>", timeout_s=2),
        lambda bus: bus.listing(QUEUE, "queue.>", after=0, count=2),
        lambda bus: bus.made_at(QUEUE),
        lambda bus: bus.consumers(QUEUE),
        lambda bus: bus.delete_consumer(QUEUE, "default-1"),
        lambda bus: bus.purge(QUEUE, "queue.a.1.b"),
        lambda bus: bus.last(QUEUE, "queue.a.1.b"),
        lambda bus: bus.fill(QUEUE),
        lambda bus: bus.add_follower(QUEUE, after=0),
    ],
)
async def test_a_missing_stream_is_an_unavailable_log(
    nats_server: NatsServer, bus: Bus, ask: Callable[[Bus], Awaitable[object]]
) -> None:
    async with operator(nats_server) as client:
        await client.jetstream().delete_stream(QUEUE)
    with pytest.raises(LogUnavailable):
        await ask(bus)


async def test_streams_lost_in_a_restart_are_made_again_unasked(
    nats_server: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    nats_server.stop()
    [folder] = (tmp_path / "nats" / "store").rglob(QUEUE)
    shutil.rmtree(folder)
    nats_server.start()
    async with operator(nats_server) as client:

        async def is_back() -> bool:
            return QUEUE in await stream_names(client)

        await eventually(is_back)


async def test_a_stream_that_cannot_be_updated_holds_up_no_other(nats_server: NatsServer) -> None:
    async with operator(nats_server) as client:
        in_memory = nats.js.api.StreamConfig(
            name=JOBS, subjects=["jobs.*.*"], storage=nats.js.api.StorageType.MEMORY
        )
        await client.jetstream().add_stream(in_memory)
        bus = Bus(nats_server.url, name="test")
        bus.start()

        async def all_there() -> bool:
            return await stream_names(client) == {spec.name for spec in STREAMS}

        await eventually(all_there)
        assert not bus.is_connected
        await client.jetstream().delete_stream(JOBS)
        await asyncio.wait_for(bus.wait_connected(), 10)
        await bus.close()


async def test_a_reconnected_bus_leaves_a_newer_configuration_alone(
    nats_server: NatsServer, bus: Bus
) -> None:
    """During a deploy the processes of both versions are connected."""
    async with operator(nats_server) as client:
        js = client.jetstream()
        config = (await js.stream_info(JOBS)).config
        await js.update_stream(config.evolve(duplicate_window=60.0))
        await js.delete_stream(QUEUE)
        await eventually(lambda: stores(bus, "queue.a.1.b"))
        info = await js.stream_info(JOBS)
    assert info.config.duplicate_window == 60.0


@pytest.mark.parametrize("size_bytes", [20_000_000, 5_000_000])
async def test_no_start_changes_the_size_of_the_log(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture, size_bytes: int
) -> None:
    async def started() -> None:
        bus = Bus(nats_server.url, name="role", log_max_bytes=10_000_000)
        bus.start()
        await warn_if_size_differs(bus, configured=10_000_000)
        await bus.close()

    with caplog.at_level(logging.WARNING, "events.bus.health"):
        await started()
        assert caplog.messages == []
        async with operator(nats_server) as client:
            js = client.jetstream()
            config = (await js.stream_info(JOBS)).config
            assert config.max_bytes == 10_000_000
            await js.update_stream(config.evolve(max_bytes=size_bytes))
            await started()
            assert (await js.stream_info(JOBS)).config.max_bytes == size_bytes
    assert ["keeps its present size" in message for message in caplog.messages] == [True]


async def test_a_consumer_that_is_gone_already_is_deleted(bus: Bus) -> None:
    queue = JobQueue(bus, lease_s=30)
    async with queue.consume("default", 1):
        assert await bus.consumers(QUEUE) == ["default-1"]
    for _ in range(2):
        await bus.delete_consumer(QUEUE, "default-1")
    assert await bus.consumers(QUEUE) == []
