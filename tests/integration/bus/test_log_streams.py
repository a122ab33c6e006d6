"""The log as several streams on a real nats-server: made, taken over from one, and refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from nats.aio.client import Client

from events.bus.bus import Bus
from events.bus.consumer import JobEvents
from events.bus.health import tell_log_size
from events.bus.logs.job_log import job_log
from events.bus.streams import JOBS
from events.errors import LogUnavailable
from events.ids import new_id, partition_of
from events.log import Appended, WholeLog, utc_now
from events.streams.log_streams import LogStreams
from events.types import CancelRequested, Event
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected, operator, stores
from tests.support.events import submitted
from tests.support.polling import eventually
from tests.support.subscriber import stored_events

FOUR = {f"{JOBS}_{index}" for index in range(4)}


async def log_streams(client: Client) -> dict[str, list[str]]:
    infos = await client.jetstream().streams_info()
    names = {info.config.name or "": list(info.config.subjects or ()) for info in infos}
    return {name: subjects for name, subjects in names.items() if name.startswith(JOBS)}


async def submit(log: WholeLog, job_id: str | None = None) -> Event:
    event = Event(
        id=new_id(), job_id=job_id or new_id(), version=1, time=utc_now(), data=submitted()
    )
    outcome = await log.append(event, expected=0)
    assert isinstance(outcome, Appended)
    return outcome.event


@asynccontextmanager
async def starting(server: NatsServer, count: int) -> AsyncIterator[Bus]:
    """As a part of the service, which may never get its streams."""
    bus = Bus(server.url, name="test", log_streams=LogStreams(count))
    bus.start()
    async with asyncio.timeout(10):
        await bus.wait_known()
    try:
        yield bus
    finally:
        await bus.close()


async def refusal(server: NatsServer, count: int) -> str | None:
    async with starting(server, count) as bus:
        if bus.refusal is not None:
            assert not bus.is_connected
            assert not await stores(bus)
        return bus.refusal


@pytest.mark.parametrize("count", [2, 4, 8, 16])
async def test_each_stream_has_its_share_of_the_partitions(
    nats_server: NatsServer, count: int
) -> None:
    async with connected(nats_server, log_streams=count), operator(nats_server) as client:
        found = await log_streams(client)
        names = [f"{JOBS}_{index}" for index in range(count)]
        assert sorted(found) == sorted(names)
        for index, name in enumerate(names):
            assert found[name] == [f"jobs.{each}.*" for each in range(index, 16, count)]


@pytest.mark.parametrize(("size", "each"), [(4003, 1000), (3, 1)])
async def test_the_streams_share_the_size_of_the_log(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture, size: int, each: int
) -> None:
    bus = Bus(nats_server.url, name="test", log_max_bytes=size, log_streams=LogStreams(4))
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    assert {await bus.max_bytes(name) for name in FOUR} == {each}
    with caplog.at_level(logging.WARNING, "events.bus.health"):
        await tell_log_size(bus, configured=size)
        assert caplog.messages == []
    await bus.close()


async def test_one_stream_that_nothing_was_ever_in_becomes_several(nats_server: NatsServer) -> None:
    async with connected(nats_server):
        pass
    async with connected(nats_server, log_streams=4) as bus, operator(nats_server) as client:
        assert (await log_streams(client)).keys() == FOUR
        event = await submit(job_log(bus))
        assert await job_log(bus).read(event.job_id) == [event]


@pytest.mark.parametrize("before", [1, 3, 4, 5, 8])
async def test_positions_go_on_behind_those_of_the_one_stream(
    nats_server: NatsServer, before: int
) -> None:
    async with connected(nats_server) as bus:
        log = job_log(bus)
        events = [await submit(log) for _ in range(before)]
        async for page in bus.pages(JOBS, "jobs.>"):
            assert len(page) == before
        for event in events:
            await log.purge(event.job_id)
    last = events[-1].position
    assert last == before
    async with connected(nats_server, log_streams=4) as bus, operator(nats_server) as client:
        assert (await log_streams(client)).keys() == FOUR
        log = job_log(bus)
        later = [await submit(log) for _ in range(40)]
        assert min(event.position for event in later) > last
        assert len({event.position for event in later}) == 40
        async with log.reader(after=last) as reader:
            found: list[Event] = []
            while batch := await reader.next(1):
                found += batch
        assert {event.id for event in found} == {event.id for event in later}


async def test_one_stream_with_events_is_refused_and_left_as_it_was(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server) as bus:
        event = await submit(job_log(bus))
    said = await refusal(nats_server, 4)
    assert said is not None
    assert "DARKROOM_LOG_STREAMS is 4" in said
    assert "one stream, which holds events: set it to 1" in said
    async with connected(nats_server) as bus, operator(nats_server) as client:
        assert await log_streams(client) == {JOBS: ["jobs.*.*"]}
        assert await job_log(bus).read(event.job_id) == [event]


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_several_streams_are_refused_as_another_number(
    nats_server: NatsServer, count: int
) -> None:
    async with connected(nats_server, log_streams=4) as bus:
        event = await submit(job_log(bus))
    said = await refusal(nats_server, count)
    assert said is not None
    assert f"DARKROOM_LOG_STREAMS is {count}, but the event log is 4 streams: set it to 4" in said
    async with connected(nats_server, log_streams=4) as bus, operator(nats_server) as client:
        assert (await log_streams(client)).keys() == FOUR
        assert await job_log(bus).read(event.job_id) == [event]


async def test_what_was_refused_works_once_the_streams_are_as_set(nats_server: NatsServer) -> None:
    async with connected(nats_server) as one:
        event = await submit(job_log(one))
        async with starting(nats_server, 4) as bus:
            assert bus.refusal is not None
            await job_log(one).purge(event.job_id)
            await asyncio.wait_for(bus.wait_connected(), 20)
            assert bus.refusal is None
            await submit(job_log(bus))


async def test_two_processes_that_start_at_once_both_get_their_streams(
    nats_server: NatsServer,
) -> None:
    async with connected(nats_server) as bus:
        await job_log(bus).purge((await submit(job_log(bus))).job_id)
    buses = [Bus(nats_server.url, name="test", log_streams=LogStreams(4)) for _ in range(4)]
    for bus in buses:
        bus.start()
    await asyncio.gather(*(asyncio.wait_for(bus.wait_connected(), 20) for bus in buses))
    events = [await submit(job_log(bus)) for bus in buses]
    assert len({event.position for event in events}) == 4
    async with operator(nats_server) as client:
        assert (await log_streams(client)).keys() == FOUR
    for bus in buses:
        await bus.close()


@pytest.mark.parametrize("made", [0, 2])
async def test_a_change_that_a_process_died_in_is_taken_up(
    nats_server: NatsServer, made: int
) -> None:
    """Closed, and with some of the new streams; as `split_if_empty` has it after each step."""
    async with connected(nats_server) as bus:
        await job_log(bus).purge((await submit(job_log(bus))).job_id)
    async with operator(nats_server) as client:
        js = client.jetstream()
        config = (await js.stream_info(JOBS)).config
        await js.update_stream(config.evolve(subjects=["closed.jobs"], republish=None))
        for index in range(made):
            subjects = [f"jobs.{each}.*" for each in range(index, 16, 4)]
            await js.add_stream(
                config.evolve(name=f"{JOBS}_{index}", subjects=subjects, first_seq=2)
            )
        async with connected(nats_server, log_streams=4) as bus:
            assert (await log_streams(client)).keys() == FOUR
            assert (await submit(job_log(bus))).position > 1


async def test_a_writer_of_another_number_of_streams_stores_nothing(
    nats_server: NatsServer,
) -> None:
    """One that is connected while the streams change takes no position for another."""
    async with connected(nats_server, log_streams=4) as bus, operator(nats_server) as client:
        js = client.jetstream()
        log = job_log(bus)
        job_id = new_id()
        index = partition_of(job_id) % 4
        await js.delete_stream(f"{JOBS}_{index}")
        config = (await js.stream_info(f"{JOBS}_{(index + 1) % 4}")).config
        subjects = [f"jobs.{each}.*" for each in range(index, 16, 4)]
        await js.add_stream(config.evolve(name="ELSEWHERE", subjects=subjects))
        with pytest.raises(LogUnavailable):
            await submit(log, job_id)
        assert (await js.stream_info("ELSEWHERE")).state.messages == 0


async def test_a_writer_of_one_stream_stores_nothing_in_another(nats_server: NatsServer) -> None:
    async with connected(nats_server) as bus, operator(nats_server) as client:
        js = client.jetstream()
        config = (await js.stream_info(JOBS)).config
        await js.delete_stream(JOBS)
        await js.add_stream(config.evolve(name="ELSEWHERE"))
        with pytest.raises(LogUnavailable):
            await submit(job_log(bus))
        assert (await js.stream_info("ELSEWHERE")).state.messages == 0


async def test_a_client_of_nats_alone_reads_a_job_from_its_stream(nats_server: NatsServer) -> None:
    async with connected(nats_server, log_streams=4) as bus:
        events = [await submit(job_log(bus)) for _ in range(4)]
    for event in events:
        [found] = await stored_events(nats_server.url, event.job_id)
        assert found["id"] == event.id


async def test_a_watch_of_one_job_has_its_positions(nats_server: NatsServer) -> None:
    async with connected(nats_server, log_streams=4) as bus:
        log, job_id = job_log(bus), new_id()
        async with log.watch(job_id) as subscription:
            first = await submit(log, job_id)
            second = Event(
                id=new_id(), job_id=job_id, version=2, time=utc_now(), data=CancelRequested()
            )
            outcome = await log.append(second, expected=first.position)
            assert isinstance(outcome, Appended)
            assert [await subscription.next(5) for _ in range(2)] == [first, outcome.event]


async def test_the_consumer_of_a_stream_goes_on_where_it_was(nats_server: NatsServer) -> None:
    handled: list[Event] = []

    async def handle(event: Event) -> None:
        handled.append(event)

    async with connected(nats_server, log_streams=4) as bus:
        stored = [await submit(job_log(bus)) for _ in range(30)]
        work = asyncio.create_task(JobEvents(bus).run(handle))
        await eventually(lambda: len(handled) == 30)
        await asyncio.sleep(0.2)  # the last acknowledgement
        work.cancel()
        await asyncio.wait({work})
        assert {event.id for event in handled} == {event.id for event in stored}
        assert {event.position for event in handled} == {event.position for event in stored}
        handled.clear()
        work = asyncio.create_task(JobEvents(bus).run(handle))
        later = await submit(job_log(bus))
        await eventually(lambda: handled == [later])
        work.cancel()
        await asyncio.wait({work})
