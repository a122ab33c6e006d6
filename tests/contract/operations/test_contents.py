"""One suite over what can be seen of logs and queues: in memory, and on a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import nats.js.errors
import pytest

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog, LogContents, log_contents
from events.bus.puller import Message
from events.bus.queues import CallbackQueue, JobQueue
from events.cloud_events import encode
from events.errors import LogUnavailable
from events.ids import CONSUMERS, new_id
from events.log import EventLog, utc_now
from events.types import Event
from local.nats_server import NatsServer
from tests.support.bus import operator, started
from tests.support.events import LATER, appended, folded, new_event, submitted
from tests.support.memory.contents import MemoryLogContents
from tests.support.memory.log import MemoryLog
from tests.support.memory.queues import MemoryCallbackQueue, MemoryJobQueue


@dataclass
class Parts:
    log: EventLog
    queue: JobQueue
    callbacks: CallbackQueue
    log_contents: LogContents


@pytest.fixture(params=["memory", "jetstream"])
def parts(request: pytest.FixtureRequest) -> Parts:
    if request.param == "memory":
        log = MemoryLog()
        return Parts(log, MemoryJobQueue(), MemoryCallbackQueue(), MemoryLogContents(log))
    bus = request.getfixturevalue("bus")
    return Parts(
        JetStreamLog(bus), JobQueue(bus, lease_s=30), CallbackQueue(bus), log_contents(bus)
    )


async def all_of(pages: AsyncGenerator[list[str]]) -> list[str]:
    return sorted([each async for page in pages for each in page])


async def submit(log: EventLog) -> Event:
    return await appended(log, new_event())


async def test_every_job_of_a_log_is_seen_once(parts: Parts) -> None:
    assert await all_of(parts.log_contents.job_ids()) == []
    events = [await submit(parts.log) for _ in range(40)]
    ids = sorted(event.job_id for event in events)
    assert await all_of(parts.log_contents.job_ids()) == ids
    await parts.log.purge(ids[0])
    assert await all_of(parts.log_contents.job_ids()) == ids[1:]


async def test_what_is_stored_and_what_follows_is_seen_as_it_is(parts: Parts) -> None:
    assert await parts.log_contents.last_sequence() == 0
    first, second = await submit(parts.log), await submit(parts.log)
    stored = await parts.log_contents.read_raw([first.job_id, new_id()])
    [(sequence, payload)] = [(each.sequence, each.payload) for each in stored[first.job_id]]
    assert (list(stored), sequence, payload) == ([first.job_id], first.position, encode(first))
    following = await parts.log_contents.following(first.position)
    assert [each.sequence for each in following] == [second.position]
    assert await parts.log_contents.following(second.position) == []
    await parts.log.purge(second.job_id)
    assert await parts.log_contents.last_sequence() == second.position


async def test_all_that_follows_is_seen_step_by_step(parts: Parts) -> None:
    events = [await submit(parts.log) for _ in range(100)]
    found, offset = [], 0
    while some := await parts.log_contents.following(offset):
        found += [each.sequence for each in some]
        offset = found[-1]
    assert found == [event.position for event in events]


async def test_entries_that_wait_and_that_are_held_are_seen(parts: Parts) -> None:
    job = folded([submitted()])
    assert not await parts.queue.has(job)
    await parts.queue.add(job.submitted.endpoint, job.submitted.lane, job.id, deadline=LATER)
    async with parts.queue.consume(job.submitted.endpoint, job.submitted.lane % CONSUMERS) as lane:
        [entry] = await lane.next(most=1, timeout_s=5)
        assert await parts.queue.has(job)
        assert await all_of(parts.queue.job_id_pages()) == [job.id]
        await entry.ack()
    assert await all_of(parts.queue.job_id_pages()) == []


async def test_deliveries_that_are_due_and_parked_are_seen(parts: Parts) -> None:
    due, parked = folded([submitted()]), new_id()
    assert not await parts.callbacks.has(due)
    await parts.callbacks.add(due.id)
    assert await parts.callbacks.has(due)
    await parts.callbacks.park(parked, utc_now() + timedelta(hours=1))
    assert await all_of(parts.callbacks.job_id_pages()) == sorted([due.id, parked])


async def test_a_look_makes_no_streams(nats_server: NatsServer) -> None:
    async with started(Bus(nats_server.url, name="operator", prepares_streams=False)) as bus:
        with pytest.raises(LogUnavailable, match="stream not found"):
            await all_of(log_contents(bus).job_ids())
    async with operator(nats_server) as client:
        with pytest.raises(nats.js.errors.NotFoundError):
            await client.jetstream().stream_info("JOBS")


# Replicas that lag, are silent or unavailable.


class LaggingBus(Bus):
    """The replica that answers its batches has nothing yet, or answers nothing in time."""

    lags = False

    async def batch(self, *args: Any, **options: Any) -> list[Message]:
        return [] if self.lags else await super().batch(*args, **options)


@pytest.fixture
async def lagging_bus(nats_server: NatsServer) -> AsyncIterator[LaggingBus]:
    async with started(LaggingBus(nats_server.url, name="test")) as lagging_bus:
        yield lagging_bus


async def test_what_only_the_leader_has_is_not_passed_over(lagging_bus: LaggingBus) -> None:
    log = JetStreamLog(lagging_bus)
    events = [await submit(log) for _ in range(3)]
    lagging_bus.lags = True
    positions, after = [], 0
    while stored := await log_contents(lagging_bus).following(after):
        positions += [each.sequence for each in stored]
        after = positions[-1]
    assert positions == [event.position for event in events]


async def test_a_silent_server_is_no_end_of_the_log(
    lagging_bus: LaggingBus, nats_server: NatsServer
) -> None:
    await submit(JetStreamLog(lagging_bus))
    lagging_bus.lags = True
    nats_server.stop()
    with pytest.raises(LogUnavailable):
        await log_contents(lagging_bus).following(0)
