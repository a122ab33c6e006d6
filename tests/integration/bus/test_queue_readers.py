"""The readers of a queue on a real nats-server: what one leaves, and those of another version."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from events.bus.bus import Bus
from events.bus.puller import Feed
from events.bus.queues import JobQueue
from events.bus.streams import QUEUE
from local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.events import LATER

LEASE_S = 30.0


async def test_a_reader_gives_back_what_is_on_its_way_when_it_closes(
    nats_server: NatsServer, bus: Bus
) -> None:
    queue, jobs = JobQueue(bus, lease_s=LEASE_S), [f"job-{number}" for number in range(5)]

    async def add() -> None:
        async with connected(nats_server) as another:
            for job_id in jobs:
                await JobQueue(another, lease_s=LEASE_S).add("default", 3, job_id, deadline=LATER)

    async with queue.consume("default", 3) as entries:
        assert await entries.next(most=5, timeout_s=0.1) == []  # from here on a request stands
        with ThreadPoolExecutor() as another:  # while it adds them, nothing is read here
            another.submit(asyncio.run, add()).result()
    assert sorted(await read(queue, len(jobs))) == jobs


async def test_a_reader_that_is_cancelled_while_it_stops_gives_back_what_came(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, jobs = JobQueue(bus, lease_s=LEASE_S), [f"job-{number}" for number in range(5)]
    is_stopping = asyncio.Event()

    async def hang(_: Feed) -> None:
        is_stopping.set()
        await asyncio.Event().wait()

    async def read_none() -> None:
        async with queue.consume("default", 3) as entries:
            assert await entries.next(most=5, timeout_s=0.1) == []  # from here on a request stands
            for job_id in jobs:
                await queue.add("default", 3, job_id, deadline=LATER)
            await bus.last_sequence(QUEUE)  # answered behind them, on the same connection
            monkeypatch.setattr(Feed, "get", hang)

    reading = asyncio.create_task(read_none())
    await is_stopping.wait()
    monkeypatch.undo()
    reading.cancel()
    await asyncio.wait({reading})
    assert sorted(await read(queue, len(jobs))) == jobs


async def read(queue: JobQueue, count: int) -> list[str]:
    """So many jobs. What was lost would come with the end of its lease."""
    found: list[str] = []
    async with queue.consume("default", 3) as entries:
        while len(found) < count:
            some = await entries.next(most=count, timeout_s=LEASE_S / 3)
            assert some, found
            found += [entry.job_id for entry in some]
    return found
