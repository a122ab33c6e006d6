"""The NATS of deploy/nats: three servers, which the service uses as it will on a cluster."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.client import Client

from events.bus.bus import Bus
from events.bus.streams import JOBS, event_subject, job_subject
from events.ids import new_id
from tests.support.bus import stores
from tests.support.deploy.nats_cluster import Cluster, nats_cluster
from tests.support.polling import eventually


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


async def test_two_of_three_servers_take_events(cluster: Cluster, bus: Bus) -> None:
    assert await stores(bus)
    cluster.servers[0].kill()
    try:
        await eventually(lambda: stores(bus))
    finally:
        cluster.servers[0].start()
