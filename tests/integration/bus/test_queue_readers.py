"""The readers of a queue on a real nats-server: what one leaves, and those of another version."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import nats.js.api
import pytest

from events.bus.bus import Bus
from events.bus.puller import Feed
from events.bus.queues import JetStreamJobQueue
from events.bus.streams import QUEUE
from events.errors import LogUnavailable
from events.ids import LANES, READERS
from events.retry import keep_trying
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected, operator
from tests.support.polling import eventually

LEASE_S = 30.0


async def read_by_lane(nats_server: NatsServer, endpoint: str) -> None:
    """What a version does that has a consumer for each lane."""
    async with operator(nats_server) as client:
        for lane in range(LANES):
            config = nats.js.api.ConsumerConfig(
                durable_name=f"{endpoint}-{lane}",
                filter_subject=f"queue.{endpoint}.{lane}.*",
                ack_policy=nats.js.api.AckPolicy.EXPLICIT,
                ack_wait=LEASE_S,
                max_ack_pending=-1,
                max_waiting=64,
            )
            await client.jetstream().add_consumer(QUEUE, config)


@pytest.mark.parametrize("is_after_ours", [False, True])
async def test_it_takes_over_from_a_version_with_a_consumer_for_each_lane(
    nats_server: NatsServer, bus: Bus, is_after_ours: bool
) -> None:
    queue = JetStreamJobQueue(bus, lease_s=LEASE_S)
    for lane in reversed(range(LANES)):  # what the first eight hold stands behind the others
        await queue.add("default", lane, f"job-{lane}")
    if is_after_ours:
        for reader in range(READERS):
            async with queue.reader("default", reader):
                pass
    await read_by_lane(nats_server, "default")
    await read_by_lane(nats_server, "default-9")
    async with operator(nats_server) as client:
        for lane in range(LANES):
            pull = await client.jetstream().pull_subscribe_bind(f"default-{lane}", QUEUE)
            await pull.fetch(1, timeout=5)
    found: list[str] = []
    for reader in range(READERS):
        async with queue.reader("default", reader) as entries:
            while some := await entries.next(most=64, timeout_s=0.3):
                found += [entry.job_id for entry in some]
    assert sorted(found) == sorted(f"job-{lane}" for lane in range(LANES))
    names = {f"default-{reader}" for reader in range(READERS)}
    others = {f"default-9-{lane}" for lane in range(LANES)}
    assert set(await bus.consumers(QUEUE)) == names | others


async def test_a_reader_gives_back_what_came_and_was_not_taken(bus: Bus) -> None:
    queue = JetStreamJobQueue(bus, lease_s=LEASE_S)
    async with queue.reader("default", 3) as entries:
        assert await entries.next(most=5, timeout_s=0.1) == []  # from here on a request stands
        for number in range(5):
            await queue.add("default", 3, f"job-{number}")
        await bus.last_sequence(QUEUE)  # answered behind them, on the same connection
    assert sorted(await read(queue, 5)) == [f"job-{number}" for number in range(5)]


async def test_an_open_reader_notices_that_an_older_version_took_subjects_from_it(
    nats_server: NatsServer, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("events.bus.queue_entries._CHECK_S", 0.5)
    queue = JetStreamJobQueue(bus, lease_s=LEASE_S)

    async def read() -> str:
        async with queue.reader("default", 3) as entries:
            while not (some := await entries.next(most=64, timeout_s=0.2)):
                pass
            return some[0].job_id

    reading = asyncio.create_task(keep_trying(read, on=LogUnavailable))
    await eventually(lambda: has_consumers(bus))
    await read_by_lane(nats_server, "default")
    await queue.add("default", 3 + READERS, "a-job")
    assert await asyncio.wait_for(reading, 10) == "a-job"


async def has_consumers(bus: Bus) -> bool:
    return bool(await bus.consumers(QUEUE))


async def test_a_reader_gives_back_what_is_on_its_way_when_it_closes(
    nats_server: NatsServer, bus: Bus
) -> None:
    queue, jobs = JetStreamJobQueue(bus, lease_s=LEASE_S), [f"job-{number}" for number in range(5)]

    async def add() -> None:
        async with connected(nats_server) as another:
            for job_id in jobs:
                await JetStreamJobQueue(another, lease_s=LEASE_S).add("default", 3, job_id)

    async with queue.reader("default", 3) as entries:
        assert await entries.next(most=5, timeout_s=0.1) == []  # from here on a request stands
        with ThreadPoolExecutor() as another:  # while it adds them, nothing is read here
            another.submit(asyncio.run, add()).result()
    assert sorted(await read(queue, len(jobs))) == jobs


async def test_a_reader_that_is_cancelled_while_it_stops_gives_back_what_came(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, jobs = JetStreamJobQueue(bus, lease_s=LEASE_S), [f"job-{number}" for number in range(5)]
    is_stopping = asyncio.Event()

    async def hang(_: Feed) -> None:
        is_stopping.set()
        await asyncio.Event().wait()

    async def read_none() -> None:
        async with queue.reader("default", 3) as entries:
            assert await entries.next(most=5, timeout_s=0.1) == []  # from here on a request stands
            for job_id in jobs:
                await queue.add("default", 3, job_id)
            await bus.last_sequence(QUEUE)  # answered behind them, on the same connection
            monkeypatch.setattr(Feed, "get", hang)

    reading = asyncio.create_task(read_none())
    await is_stopping.wait()
    monkeypatch.undo()
    reading.cancel()
    await asyncio.wait({reading})
    assert sorted(await read(queue, len(jobs))) == jobs


async def read(queue: JetStreamJobQueue, count: int) -> list[str]:
    """So many jobs. What was lost would come with the end of its lease."""
    found: list[str] = []
    async with queue.reader("default", 3) as entries:
        while len(found) < count:
            some = await entries.next(most=count, timeout_s=LEASE_S / 3)
            assert some, found
            found += [entry.job_id for entry in some]
    return found
