"""The connection to a real nats-server that is slow, goes away or closes it for good."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from nats.errors import NoRespondersError

from events.bus.bus import Bus
from events.bus.streams import ROUTER_CONSUMER
from events.errors import LogUnavailable
from events.ids import new_id
from local.nats_server import NatsServer
from tests.support.bus import operator, stores
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


@pytest.fixture
def config(nats_server: NatsServer, tmp_path: Path) -> Path:
    return tmp_path / "nats" / "nats-server.conf"


# A server that is slow to answer.


async def test_a_subscription_whose_server_is_slow_leaves_the_connection_working(
    nats_server: NatsServer, bus: Bus
) -> None:
    with paused(nats_server), suppress(LogUnavailable):
        async with asyncio.timeout(4), bus.subscribe(SUBJECT):
            pass
    await eventually(lambda: stores(bus))


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
        await eventually(nobody_listens)
    await eventually(lambda: stores(bus))


async def test_what_is_published_after_the_subscription_is_heard(bus: Bus) -> None:
    """One connection keeps its order, so a subscriber needs no answer before it goes on."""
    for turn in range(50):
        async with bus.subscribe(SUBJECT) as feed:
            await bus.publish(SUBJECT, b"%d" % turn)
            message = await asyncio.wait_for(feed.get(), 2)
            assert message.data == b"%d" % turn


# A connection that the server closes for good.


async def test_a_connection_that_the_server_closes_is_made_again(
    nats_server: NatsServer, bus: Bus, config: Path
) -> None:
    spec = ROUTER_CONSUMER
    await bus.ensure_consumer(spec)
    async with bus.puller(spec.stream, spec.name) as puller, bus.subscribe(SUBJECT) as feed:
        pulled = asyncio.create_task(puller.follow(batch=1, timeout_s=60))
        heard = asyncio.create_task(feed.get())
        # All has arrived: a write to a connection that is closed meanwhile would hide why it was.
        await eventually(lambda: stores(bus))
        with reloaded(nats_server, config, other_passwords):
            with pytest.raises(LogUnavailable):
                await asyncio.wait_for(pulled, 10)
            with pytest.raises(LogUnavailable):
                await asyncio.wait_for(heard, 10)
            with pytest.raises(LogUnavailable):
                await asyncio.wait_for(feed.get(), 1)
            with pytest.raises(LogUnavailable):
                await puller.follow(batch=1, timeout_s=1)
            assert not bus.is_connected
            with pytest.raises(LogUnavailable):
                async with bus.subscribe(SUBJECT):
                    pass
    await eventually(lambda: stores(bus))
    async with bus.puller(spec.stream, spec.name) as puller:
        await bus.store(f"jobs.1.{new_id()}", b"", timeout_s=10)
        assert len(await puller.follow(batch=1, timeout_s=5)) == 1


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
    for bus in buses:
        await eventually(partial(stores, bus))
    await asyncio.gather(*(bus.close() for bus in buses))


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
