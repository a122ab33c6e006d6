"""The NATS of deploy/nats: three servers with TLS and accounts, of which one is away."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from nats.aio.client import Client

from events.bus.bus import Bus
from events.bus.errors import NoAnswer
from events.bus.jetstream_log import JetStreamLog
from events.bus.queues import JetStreamJobQueue
from events.bus.streams import JOBS, QUEUE, event_subject, job_subject
from events.errors import LogUnavailable, OutcomeUnknown, ReadTimeout
from events.ids import new_id
from events.log import Appended, utc_now
from events.retry import keep_trying
from events.types import Event, Started
from tests.support.deploy.nats_cluster import Cluster, Server, nats_cluster
from tests.support.events import submitted
from tests.support.polling import eventually

T = TypeVar("T")

PASSING = (LogUnavailable, NoAnswer, OutcomeUnknown, ReadTimeout)
"""What an operation may meet while no server leads."""


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


@pytest.fixture
async def reader(cluster: Cluster) -> AsyncIterator[Client]:
    async def ignore(_: Exception) -> None:
        """A refusal comes here; the test looks at what became of it."""

    client = Client()
    context = ssl.create_default_context(cafile=cluster.ca_file)
    servers = cluster.url("reader").split(",")
    await client.connect(servers, tls=context, error_cb=ignore)
    try:
        yield client
    finally:
        await client.close()


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


async def test_the_reader_sees_events_and_stores_none(reader: Client, bus: Bus) -> None:
    subscription = await reader.subscribe("events.>")
    await reader.flush()
    job_id, forged = new_id(), new_id()
    await reader.publish(job_subject(forged), b"forged")
    await reader.flush()
    await bus.store(job_subject(job_id), b"an event", timeout_s=5)
    message = await subscription.next_msg(timeout=5)
    assert (message.subject, message.data) == (event_subject(job_id), b"an event")


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


class Caller:
    """Submits job after job, and again what was not answered, as with an Idempotency-Key."""

    def __init__(self, log: JetStreamLog) -> None:
        self._log = log
        self.accepted: list[str] = []

    async def run(self) -> None:
        while True:
            job_id = new_id()
            new = Event(id=new_id(), job_id=job_id, version=1, time=utc_now(), data=submitted())
            await eventually(partial(self._is_accepted, new))
            self.accepted.append(job_id)

    async def _is_accepted(self, new: Event) -> bool:
        try:
            return isinstance(await self._log.append(new, expected=0), Appended)
        except PASSING:
            return False


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_every_job_that_is_accepted_while_a_server_dies_is_there_once(
    cluster: Cluster, bus: Bus, which: str
) -> None:
    log = JetStreamLog(bus, append_timeout_s=5, try_timeout_s=1)
    callers = [Caller(log) for _ in range(20)]
    tasks = [asyncio.create_task(caller.run()) for caller in callers]

    async def all_go_on() -> None:
        enough = [len(caller.accepted) + 5 for caller in callers]
        await eventually(
            lambda: all(len(c.accepted) >= n for c, n in zip(callers, enough, strict=True)),
            within_s=60,
        )

    first = await leader(cluster, bus, JOBS)
    dead = first if which == "leader" else next(s for s in cluster.servers if s is not first)
    try:
        await all_go_on()
        dead.kill()
        await all_go_on()
        dead.start()
        await all_go_on()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    await all_copied(bus)
    # The server that was away has what it missed: another one may go now.
    other = next(server for server in cluster.servers if server is not dead)
    other.kill()
    try:
        for job_id in (job_id for caller in callers for job_id in caller.accepted):
            events = await until_done(partial(log.read, job_id))
            assert [event.version for event in events] == [1]
    finally:
        other.start()
        await all_copied(bus)


async def test_an_entry_that_is_held_outlives_the_server_that_gave_it(
    cluster: Cluster, bus: Bus
) -> None:
    """Its holder renews and acknowledges it, and nobody else gets it meanwhile."""
    queue = JetStreamJobQueue(bus, lease_s=20)
    job_ids = [new_id() for _ in range(10)]
    for job_id in job_ids:
        await until_done(partial(queue.add, "default", 3, job_id))
    async with queue.reader("default", 3) as lane:
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


async def test_two_writers_cannot_both_win_while_the_leader_changes(
    cluster: Cluster, bus: Bus
) -> None:
    log = JetStreamLog(bus, append_timeout_s=5, try_timeout_s=1)
    job_ids = [new_id() for _ in range(50)]

    async def start(job_id: str, actor: str) -> None:
        """Until it knows what became of it."""
        new = Event(
            id=new_id(),
            job_id=job_id,
            version=2,
            time=utc_now(),
            data=Started(attempt=1, actor=actor),
        )
        while True:
            try:
                history = await log.read(job_id)
                if len(history) > 1:
                    return
                await log.append(new, expected=history[0].position)
            except PASSING:
                await asyncio.sleep(0.05)

    for job_id in job_ids:
        first = Event(id=new_id(), job_id=job_id, version=1, time=utc_now(), data=submitted())
        await until_done(partial(log.append, first, expected=0))
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
