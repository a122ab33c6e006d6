"""The promises of every consumer of the whole log: in memory and on JetStream."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

import pytest

from events.bus.bus import Bus
from events.bus.jetstream_log import EventConsumer, JetStreamLog
from events.bus.streams import JOBS, ConsumerSpec, job_subject
from events.ids import new_id
from events.log import EventLog
from events.types import Broken, Event
from local.nats_server import NatsServer
from tests.support.bus import operator
from tests.support.events import appended, new_event
from tests.support.memory.log import MemoryConsumer, MemoryLog
from tests.support.polling import eventually, running

SPEC = ConsumerSpec(JOBS, "test", ("jobs.*.*",), ack_wait_s=1.0, max_ack_pending=100)


@dataclass
class Source:
    """A log, and a consumer of it."""

    log: EventLog
    consumer: EventConsumer

    async def add(self, count: int) -> list[Event]:
        """Store the first event of each of `count` jobs."""
        return [await appended(self.log, new_event()) for _ in range(count)]


def on_jetstream(bus: Bus, *, ack_wait_s: float = SPEC.ack_wait_s) -> Source:
    spec = replace(SPEC, ack_wait_s=ack_wait_s)
    return Source(JetStreamLog(bus), EventConsumer(bus, spec))


@pytest.fixture(params=["memory", "jetstream"])
def source(request: pytest.FixtureRequest) -> Source:
    if request.param == "memory":
        log = MemoryLog()
        return Source(log, MemoryConsumer(log))
    return on_jetstream(request.getfixturevalue("bus"))


class Handler:
    """A handler that records events and never finishes one in `blocked`."""

    def __init__(self) -> None:
        self.begun: list[Event] = []
        self.handled: list[Event] = []
        self.blocked: set[str] = set()
        """The ids of events that are never finished."""

    async def __call__(self, event: Event) -> None:
        self.begun.append(event)
        if event.id in self.blocked:
            await asyncio.Event().wait()
        self.handled.append(event)


async def test_every_event_is_handed_over_also_those_stored_later(source: Source) -> None:
    stored, handler = await source.add(3), Handler()
    async with running(source.consumer.run(handler)):
        await eventually(lambda: len(handler.handled) == 3)
        stored += await source.add(2)
        await eventually(lambda: len(handler.handled) == 5)
    assert {event.id for event in handler.handled} == {event.id for event in stored}
    assert sorted(handler.handled, key=lambda event: event.time) == stored


async def test_an_event_that_takes_long_does_not_stop_those_beside_it(source: Source) -> None:
    [first, *others], handler = await source.add(5), Handler()
    handler.blocked = {first.id}
    async with running(source.consumer.run(handler)):
        await eventually(lambda: len(handler.handled) == 4)
        others += await source.add(2)
        await eventually(lambda: len(handler.handled) == 6)
    assert {event.id for event in handler.handled} == {event.id for event in others}


async def test_an_event_that_was_in_work_when_the_consumer_ended_comes_again(
    source: Source,
) -> None:
    [event], handler = await source.add(1), Handler()
    handler.blocked = {event.id}
    async with running(source.consumer.run(handler)):
        await eventually(lambda: handler.begun == [event])
    assert handler.handled == []
    handler.blocked.clear()
    async with running(source.consumer.run(handler)):
        await eventually(lambda: handler.handled == [event])


async def test_what_was_not_handled_when_a_consumer_ended_comes_to_the_next_at_once_on_jetstream(
    bus: Bus,
) -> None:
    source, handler = on_jetstream(bus, ack_wait_s=3600), Handler()
    stored = await source.add(20)
    handler.blocked = {event.id for event in stored}
    async with running(source.consumer.run(handler)):
        await eventually(lambda: handler.begun)
        await source.add(20)
        await eventually(lambda: len(handler.handled) == 20)
    again = Handler()
    async with running(source.consumer.run(again)):
        await eventually(lambda: len(again.handled) == len(stored))
    assert sorted(event.id for event in again.handled) == sorted(event.id for event in stored)


async def test_two_consumers_of_one_place_share_its_events_on_jetstream(bus: Bus) -> None:
    source, one, two = on_jetstream(bus), Handler(), Handler()
    async with running(source.consumer.run(one)), running(on_jetstream(bus).consumer.run(two)):
        stored = [event for _ in range(20) for event in await source.add(5)]
        await eventually(lambda: len(one.handled) + len(two.handled) == len(stored))
    assert one.handled
    assert two.handled
    handled = [event.id for event in one.handled + two.handled]
    assert sorted(handled) == sorted(event.id for event in stored)


async def test_an_event_that_was_handled_does_not_come_again_on_jetstream(
    nats_server: NatsServer, bus: Bus
) -> None:
    source, handler = on_jetstream(bus), Handler()
    await source.add(3)
    async with running(source.consumer.run(handler)):
        await eventually(lambda: len(handler.handled) == 3)
        await eventually(lambda: is_settled(nats_server))
    [later] = await source.add(1)
    again = Handler()
    async with running(source.consumer.run(again)):
        await eventually(lambda: again.handled == [later])


async def is_settled(server: NatsServer) -> bool:
    """Every delivery is acknowledged."""
    async with operator(server) as client:
        info = await client.jetstream().consumer_info(SPEC.stream, SPEC.name)
    return info.num_ack_pending == 0


async def test_a_message_that_is_no_event_is_handed_over_as_its_jobs_on_jetstream(
    nats_server: NatsServer, bus: Bus
) -> None:
    source, handler, job_id = on_jetstream(bus), Handler(), new_id()
    await bus.store(job_subject(job_id), b"not an event", timeout_s=5)
    [stored] = await source.add(1)
    async with running(source.consumer.run(handler)):
        await eventually(lambda: len(handler.handled) == 2)
        await eventually(lambda: is_settled(nats_server))
    [broken] = [event for event in handler.handled if event != stored]
    assert isinstance(broken.data, Broken)
    assert broken.job_id == job_id
