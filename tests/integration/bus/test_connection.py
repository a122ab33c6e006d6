"""The connection to a real nats-server: slow, gone, closed for good, its streams lost."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import nats
import nats.js.api
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError

from events.bus.bus import Bus
from events.bus.errors import NoAnswer
from events.bus.queues import JetStreamJobQueue
from events.bus.streams import CANARY, JOBS, QUEUE, STREAMS, router_consumer
from events.errors import LogUnavailable
from events.ids import new_id
from serve_app.local.nats_server import NatsServer
from tests.support.polling import eventually

SUBJECT = "progress.a-job"


@contextmanager
def paused(server: NatsServer) -> Iterator[None]:
    """The server holds every connection, and answers nothing until the end of the context."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@contextmanager
def reloaded(server: NatsServer, config: Path, change: Callable[[str], str]) -> Iterator[None]:
    """The server runs with its configuration changed."""
    before = config.read_text()
    config.write_text(change(before))
    os.kill(server.pid, signal.SIGHUP)
    try:
        yield
    finally:
        config.write_text(before)
        os.kill(server.pid, signal.SIGHUP)


def other_passwords(config: str) -> str:
    return config.replace('password: "', 'password: "x')


def one_connection(config: str) -> str:
    return "max_connections: 1\n" + config


@asynccontextmanager
async def operator(server: NatsServer) -> AsyncIterator[Client]:
    """A client of its own, as an operator would have it."""
    client = await nats.connect(server.url)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
def config(nats_server: NatsServer, tmp_path: Path) -> Path:
    return tmp_path / "nats" / "nats-server.conf"


async def stores(bus: Bus, subject: str = "canary.test") -> bool:
    try:
        return await bus.store(subject, b"", timeout_s=1) > 0
    except (LogUnavailable, NoAnswer):
        return False


async def stream_names(client: Client) -> set[str]:
    infos = await client.jetstream().streams_info()
    return {info.config.name or "" for info in infos}


# A server that is slow to answer.


async def test_a_subscription_whose_server_is_slow_leaves_the_connection_working(
    nats_server: NatsServer, bus: Bus
) -> None:
    with paused(nats_server), suppress(LogUnavailable):
        async with asyncio.timeout(4), bus.subscribe(SUBJECT):
            pass
    await eventually(lambda: stores(bus), within_s=3)


async def test_a_subscriber_that_is_cancelled_leaves_nothing_behind(
    nats_server: NatsServer, bus: Bus
) -> None:
    async def listen() -> None:
        async with bus.subscribe(SUBJECT) as feed:
            await feed.get()

    with paused(nats_server):
        listener = asyncio.create_task(listen())
        await asyncio.wait([listener], timeout=0.3)
        listener.cancel()
        await asyncio.wait([listener])

    async def nobody_listens() -> bool:
        try:
            await client.request(SUBJECT, timeout=0.2)
        except NoRespondersError:
            return True
        except TimeoutError:
            return False
        return False

    async with operator(nats_server) as client:
        await eventually(nobody_listens, within_s=3)
    assert await stores(bus)


async def test_what_is_published_after_the_subscription_is_heard(bus: Bus) -> None:
    """One connection keeps its order: whoever subscribes needs no answer before he goes on."""
    for turn in range(50):
        async with bus.subscribe(SUBJECT) as feed:
            await bus.publish(SUBJECT, b"%d" % turn)
            message = await asyncio.wait_for(feed.get(), 2)
            assert message.data == b"%d" % turn


# A connection that the server closes for good.


async def test_a_connection_that_the_server_closes_is_made_again(
    nats_server: NatsServer, bus: Bus, config: Path
) -> None:
    spec = router_consumer()
    await bus.ensure_consumer(spec)
    async with bus.puller(spec.stream, spec.name) as puller, bus.subscribe(SUBJECT) as feed:
        pulled = asyncio.create_task(puller.next(batch=1, timeout_s=60))
        heard = asyncio.create_task(feed.get())
        with reloaded(nats_server, config, other_passwords):
            assert await asyncio.wait_for(pulled, 10) == []
            with pytest.raises(LogUnavailable):
                await asyncio.wait_for(heard, 10)
            with pytest.raises(LogUnavailable):
                await asyncio.wait_for(feed.get(), 1)
            with pytest.raises(LogUnavailable):
                await puller.next(batch=1, timeout_s=1)
            assert not bus.is_connected
            with pytest.raises(LogUnavailable):
                async with bus.subscribe(SUBJECT):
                    pass
    await asyncio.wait_for(bus.wait_connected(), 10)
    assert await stores(bus)
    async with bus.puller(spec.stream, spec.name) as puller:
        await bus.store(f"jobs.1.{new_id()}", b"", timeout_s=2)
        assert len(await puller.next(batch=1, timeout_s=5)) == 1


async def test_many_connections_closed_over_and_over_all_come_back(
    nats_server: NatsServer, config: Path
) -> None:
    """Writers are busy while it happens: nothing that nats-py leaves undone may stop the bus."""
    buses = [Bus(nats_server.url, name=f"{n}") for n in range(4)]
    for bus in buses:
        bus.start()
    await asyncio.wait_for(asyncio.gather(*(bus.wait_connected() for bus in buses)), 10)

    async def write(bus: Bus) -> None:
        while True:
            await stores(bus)
            await bus.publish(SUBJECT, b"x" * 1000)
            await asyncio.sleep(0.001)

    writers = [asyncio.create_task(write(bus)) for bus in buses]
    for _ in range(2):
        with reloaded(nats_server, config, one_connection):
            await eventually(lambda: sum(bus.is_connected for bus in buses) <= 1)
        await eventually(lambda: all(bus.is_connected for bus in buses))
    for writer in writers:
        writer.cancel()
    await asyncio.gather(*writers, return_exceptions=True)
    assert all([await stores(bus) for bus in buses])
    await asyncio.gather(*(bus.close() for bus in buses))


# Streams that are lost.


async def test_a_stream_that_was_lost_is_made_again(nats_server: NatsServer, bus: Bus) -> None:
    queue = JetStreamJobQueue(bus, lease_s=30)
    async with operator(nats_server) as client:
        await client.jetstream().delete_stream(QUEUE)
    with pytest.raises(LogUnavailable):
        async with queue.lane("default", 1):
            pass

    async def queued() -> bool:
        try:
            await queue.add("default", 1, "a-job")
        except LogUnavailable:
            return False
        return True

    await eventually(queued, within_s=5)
    async with queue.lane("default", 1) as lane:
        assert len(await lane.next(most=1, timeout_s=2)) == 1


async def test_a_stream_that_only_a_writer_misses_is_made_again(
    nats_server: NatsServer, bus: Bus
) -> None:
    async with operator(nats_server) as client:
        await client.jetstream().delete_stream(CANARY)
    await eventually(lambda: stores(bus), within_s=5)


@pytest.mark.parametrize(
    "ask",
    [
        lambda bus: bus.pending(QUEUE, "queue.>"),
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
    newer = Bus(nats_server.url, name="newer", log_max_bytes=10_000_000)
    newer.start()
    await asyncio.wait_for(newer.wait_connected(), 10)
    await newer.close()
    async with operator(nats_server) as client:
        await client.jetstream().delete_stream(QUEUE)
        await eventually(lambda: stores(bus, "queue.a.1.b"), within_s=5)
        info = await client.jetstream().stream_info(JOBS)
    assert info.config.max_bytes == 10_000_000


# Closing.


async def test_closing_before_there_is_a_connection_leaves_nothing_open() -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bus = Bus(f"nats://127.0.0.1:{port}", name="test")
    bus.start()
    await asyncio.wait_for(arrived.wait(), 5)
    await asyncio.wait_for(bus.close(), 5)
    await asyncio.wait_for(left.wait(), 1)
    server.close()
    await server.wait_closed()


async def test_closing_while_the_server_is_away_is_quick(nats_server: NatsServer, bus: Bus) -> None:
    nats_server.stop()
    await eventually(lambda: not bus.is_connected)
    await asyncio.wait_for(bus.close(), 5)
    assert not bus.is_connected


async def test_closing_where_nobody_answers_is_quick() -> None:
    bus = Bus("nats://127.0.0.1:1", name="test")
    bus.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bus.wait_connected(), 0.2)
    await asyncio.wait_for(bus.close(), 2)


async def test_a_bus_that_was_never_started_can_be_closed() -> None:
    await Bus("nats://127.0.0.1:1", name="test").close()
