"""The NATS of deploy/nats: three servers with TLS and accounts, of which one is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.nats_errors import NoAnswer
from events.bus.queues import JobQueue
from events.bus.streams import JOBS, QUEUE
from events.errors import LogUnavailable, OutcomeUnknown, ReadTimeout
from events.ids import new_id
from events.log import utc_now
from events.retry import keep_trying
from events.types import Event, EventData, Started
from tests.support.deploy.nats_cluster import Cluster, Server, nats_cluster
from tests.support.events import LATER, submitted
from tests.support.polling import eventually

T = TypeVar("T")

PASSING = (LogUnavailable, NoAnswer, OutcomeUnknown, ReadTimeout)
"""Errors that an operation may get while no server leads."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with nats_cluster(tmp_path_factory.mktemp("nats")) as cluster:
        yield cluster


@asynccontextmanager
async def bus_with(cluster: Cluster, ca_file: Path | None) -> AsyncIterator[Bus]:
    replicas = len(cluster.servers)
    bus = Bus(cluster.url("service"), name="test", replicas=replicas, ca_file=ca_file)
    bus.start()
    try:
        yield bus
    finally:
        await bus.close()


@pytest.fixture
async def bus(cluster: Cluster) -> AsyncIterator[Bus]:
    async with bus_with(cluster, cluster.ca_file) as bus:
        await asyncio.wait_for(bus.wait_connected(), 60)
        await all_copied(bus)
        yield bus


async def test_every_server_has_a_copy_of_each_stream(cluster: Cluster, bus: Bus) -> None:
    answer = await bus.ask(f"$JS.API.STREAM.INFO.{JOBS}", {})
    peers = {answer["cluster"]["leader"], *(each["name"] for each in answer["cluster"]["replicas"])}
    assert peers == {server.name for server in cluster.servers}


async def test_a_client_that_does_not_know_the_authority_does_not_connect(
    cluster: Cluster, bus: Bus
) -> None:
    async with bus_with(cluster, None) as stranger:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stranger.wait_connected(), 3)


async def test_passwords_do_not_go_over_the_wire_in_clear(cluster: Cluster) -> None:
    stream, writer = await asyncio.open_connection("127.0.0.1", cluster.servers[0].client_port)
    greeting = await stream.readline()
    writer.close()
    assert b'"tls_required":true' in greeting


async def leader(cluster: Cluster, bus: Bus, stream: str) -> Server:
    answer = await bus.ask(f"$JS.API.STREAM.INFO.{stream}", {})
    return cluster.named(answer["cluster"]["leader"])


async def all_copied(bus: Bus) -> None:
    """Returns when every server has all of both streams."""
    for stream in (JOBS, QUEUE):
        await eventually(partial(is_copied, bus, stream), within_s=60)


async def is_copied(bus: Bus, stream: str) -> bool:
    """Whether every server has all of a stream."""
    try:
        answer = await bus.ask(f"$JS.API.STREAM.INFO.{stream}", {})
    except (LogUnavailable, NoAnswer):
        return False
    copies = answer["cluster"].get("replicas", [])
    return len(copies) == 2 and all(copy["current"] for copy in copies)


async def until_done(call: Callable[[], Awaitable[T]]) -> T:
    """Again while no server leads."""
    return await keep_trying(
        call, on=PASSING, first_pause_s=0.1, longest_pause_s=0.1, fields={"action": "test"}
    )


async def test_an_entry_that_is_held_outlives_the_server_that_gave_it(
    cluster: Cluster, bus: Bus
) -> None:
    """Its holder renews and acknowledges it, and no other process gets it meanwhile."""
    queue = JobQueue(bus, lease_s=20)
    job_ids = [new_id() for _ in range(10)]
    for job_id in job_ids:
        await until_done(partial(queue.add, "default", 3, job_id, deadline=LATER))
    async with queue.consume("default", 3) as lane:
        [held] = await lane.next(most=1, timeout_s=10)
        dead = await leader(cluster, bus, QUEUE)
        dead.kill()
        try:
            await until_done(held.renew)
            taken: list[str] = []
            async with asyncio.timeout(60):
                while len(taken) < len(job_ids) - 1:
                    for entry in await until_done(partial(lane.next, most=10, timeout_s=1)):
                        taken.append(entry.job_id)
                        await until_done(entry.ack)
            assert sorted([held.job_id, *taken]) == sorted(job_ids)
            await until_done(held.ack)

            async def is_empty() -> bool:
                """An acknowledgement that the dying server took away is asked for again."""
                for entry in await until_done(partial(lane.next, most=10, timeout_s=1)):
                    await until_done(entry.ack)
                return not await until_done(queue.job_ids)

            await eventually(is_empty, within_s=60)
        finally:
            dead.start()
            await all_copied(bus)


def event(job_id: str, version: int, data: EventData) -> Event:
    return Event(id=new_id(), job_id=job_id, version=version, time=utc_now(), data=data)


async def test_two_writers_cannot_both_win_while_the_leader_changes(
    cluster: Cluster, bus: Bus
) -> None:
    log = JetStreamLog(bus, append_timeout_s=5, try_timeout_s=1)
    job_ids = [new_id() for _ in range(50)]

    async def start(job_id: str, actor: str) -> None:
        """Repeat until the outcome is known."""
        new = event(job_id, 2, Started(attempt=1, actor=actor))
        while True:
            try:
                history = await log.read(job_id)
                if len(history) > 1:
                    return
                await log.append(new, expected=history[0].position)
            except PASSING:
                await asyncio.sleep(0.05)

    for job_id in job_ids:
        await until_done(partial(log.append, event(job_id, 1, submitted()), expected=0))
    dead = await leader(cluster, bus, JOBS)
    writers = [start(job_id, actor) for job_id in job_ids for actor in ("one", "two")]
    race = asyncio.gather(*writers)
    dead.kill()
    try:
        await asyncio.wait_for(race, 60)
        for job_id in job_ids:
            events = await until_done(partial(log.read, job_id))
            assert [event.version for event in events] == [1, 2]
    finally:
        dead.start()
        await all_copied(bus)
