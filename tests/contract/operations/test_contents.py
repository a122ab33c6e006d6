"""One suite over what can be seen of logs and queues: in memory, and on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import nats.js.errors
import pytest

from events.bus.bus import Bus
from events.bus.contents import JetStreamCallbackEntries, JetStreamJobEntries, log_contents
from events.bus.logs.job_log import job_log
from events.bus.queues import JetStreamCallbackQueue, JetStreamJobQueue
from events.errors import LogUnavailable
from events.ids import READERS, new_id
from events.log import Appended, EventLog, utc_now
from events.memory.contents import MemoryQueueContents
from events.memory.queues import MemoryCallbackQueue, MemoryJobQueue
from events.queue import CallbackQueue, JobQueue, QueueContents
from events.streams.contents import LogContents
from events.streams.log_streams import LogStreams, moved
from events.types import Event
from events.wire.cloud_events import encode
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected, operator
from tests.support.events import folded, submitted
from tests.support.live.memory_streams import memory_streams


@dataclass
class Parts:
    log: EventLog
    queue: JobQueue
    callbacks: CallbackQueue
    log_contents: LogContents
    queue_contents: QueueContents
    callback_contents: QueueContents


@pytest.fixture(params=[1, 4])
def streams(request: pytest.FixtureRequest) -> LogStreams:
    return LogStreams(request.param)


@pytest.fixture(params=["memory", "jetstream"])
async def parts(
    request: pytest.FixtureRequest, tmp_path: Path, streams: LogStreams
) -> AsyncIterator[Parts]:
    if request.param == "memory":
        log, contents = memory_streams(streams.count)
        queue, callbacks = MemoryJobQueue(), MemoryCallbackQueue()
        yield Parts(
            log,
            queue,
            callbacks,
            contents,
            MemoryQueueContents(queue),
            MemoryQueueContents(callbacks),
        )
        return
    server = NatsServer(tmp_path / "nats", preferred_port=0)
    server.start()
    async with connected(server, log_streams=streams.count) as bus:
        yield Parts(
            job_log(bus),
            JetStreamJobQueue(bus, lease_s=30),
            JetStreamCallbackQueue(bus),
            log_contents(bus),
            JetStreamJobEntries(bus),
            JetStreamCallbackEntries(bus),
        )
    server.stop()


async def all_of(pages: AsyncGenerator[list[str]]) -> list[str]:
    return sorted([each async for page in pages for each in page])


async def submit(log: EventLog) -> Event:
    event = Event(id=new_id(), job_id=new_id(), version=1, time=utc_now(), data=submitted())
    outcome = await log.append(event, expected=0)
    assert isinstance(outcome, Appended)
    return outcome.event


async def test_every_job_of_a_log_is_seen_once(parts: Parts) -> None:
    assert await all_of(parts.log_contents.job_ids()) == []
    events = [await submit(parts.log) for _ in range(40)]
    ids = sorted(event.job_id for event in events)
    assert await all_of(parts.log_contents.job_ids()) == ids
    await parts.log.purge(ids[0])
    assert await all_of(parts.log_contents.job_ids()) == ids[1:]


async def test_what_is_stored_and_what_follows_is_seen_as_it_is(
    parts: Parts, streams: LogStreams
) -> None:
    begin = streams.place([*range(streams.count)])
    assert await parts.log_contents.last_sequence() == begin
    first, second = await submit(parts.log), await submit(parts.log)
    place = moved(begin, first.position)
    stored = await parts.log_contents.stored([first.job_id, new_id()])
    [(sequence, payload)] = [(each.sequence, each.payload) for each in stored[first.job_id]]
    assert (list(stored), sequence, payload) == ([first.job_id], first.position, encode(first))
    following = await parts.log_contents.following(place)
    assert [each.sequence for each in following] == [second.position]
    place = moved(place, second.position)
    assert await parts.log_contents.following(place) == []
    await parts.log.purge(second.job_id)
    assert await parts.log_contents.last_sequence() == place


async def test_all_that_follows_is_seen_step_by_step(parts: Parts, streams: LogStreams) -> None:
    events = [await submit(parts.log) for _ in range(100)]
    found, place = [], streams.spread(0)
    while some := await parts.log_contents.following(place):
        found += some
        place = moved(place, some[-1].sequence)
    assert len(found) == len(events)
    assert {each.sequence for each in found} == {event.position for event in events}
    for index, part in enumerate(parts.log_contents.parts):
        position, seen = 0, []
        while some := await part.following(position):
            seen += [each.sequence for each in some]
            position = seen[-1]
        mine = [each.position for each in events if streams.of_position(each.position) == index]
        assert seen == mine


async def test_entries_that_wait_and_that_are_held_are_seen(parts: Parts) -> None:
    job = folded([submitted()])
    assert not await parts.queue_contents.has(job)
    await parts.queue.add(job.submitted.endpoint, job.submitted.lane, job.id)
    async with parts.queue.reader(job.submitted.endpoint, job.submitted.lane % READERS) as lane:
        [entry] = await lane.next(most=1, timeout_s=5)
        assert await parts.queue_contents.has(job)
        assert await all_of(parts.queue_contents.job_ids()) == [job.id]
        await entry.ack()
    assert await all_of(parts.queue_contents.job_ids()) == []


async def test_deliveries_that_are_due_and_parked_are_seen(parts: Parts) -> None:
    due, parked = folded([submitted()]), new_id()
    assert not await parts.callback_contents.has(due)
    await parts.callbacks.add(due.id)
    assert await parts.callback_contents.has(due)
    await parts.callbacks.park(parked, utc_now() + timedelta(hours=1))
    assert await all_of(parts.callback_contents.job_ids()) == sorted([due.id, parked])


async def test_a_look_makes_no_streams(nats_server: NatsServer) -> None:
    bus = Bus(nats_server.url, name="operator", prepares_streams=False)
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    with pytest.raises(LogUnavailable, match="stream not found"):
        await all_of(log_contents(bus).job_ids())
    await bus.close()
    async with operator(nats_server) as client:
        with pytest.raises(nats.js.errors.NotFoundError):
            await client.jetstream().stream_info("JOBS")
