"""Several processes at a change from one stream to several, on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo

from events.bus.bus import Bus
from events.bus.logs.job_log import job_log
from events.bus.logs.log_setup import CLOSED_SUBJECT, UNDO_SUBJECT, LogStreamsDiffer
from events.bus.stream_setup import StreamSetup
from events.bus.streams import JOBS
from events.ids import new_id
from events.log import Appended
from events.streams.log_streams import LogStreams
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected, operator
from tests.support.streams.splitting import (
    FOUR,
    ONE,
    add_parts,
    check_goes_on,
    close,
    event_of,
    late_write,
    log_streams,
    prepare_empty,
    refusal,
)

Meanwhile: TypeAlias = Callable[[], Awaitable[object]]

# A process that stands still before it removes the one stream.


class Stopping(JetStreamContext):
    """Between its look at the one stream once the others are there, and what follows."""

    meanwhile: Meanwhile | None = None
    is_made = False
    removed = 0

    async def stream_info(self, name: str, *args: Any) -> StreamInfo:
        info = await super().stream_info(name, *args)
        if name == JOBS and self.is_made and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
            await asyncio.sleep(1.5)
        return info

    async def add_stream(self, config: StreamConfig | None = None, **params: Any) -> StreamInfo:
        assert config is not None
        self.is_made = self.is_made or config.name == f"{JOBS}_3"
        return await super().add_stream(config, **params)

    async def delete_stream(self, name: str) -> bool:
        self.removed += name == JOBS
        return await super().delete_stream(name)


async def is_left(client: Client, meanwhile: Meanwhile, *, match: str) -> None:
    """The one stream, where this happens while the process stands still."""
    js = Stopping(client)
    js.meanwhile = meanwhile
    setup = StreamSetup(replicas=1, log_max_bytes=-1, log_streams=LogStreams(4))
    with pytest.raises(LogStreamsDiffer, match=match):
        await setup.prepare(js)
    assert js.removed == 0
    assert await log_streams(client) == ONE


async def test_a_write_that_came_while_a_process_stood_still_is_kept(
    nats_server: NatsServer,
) -> None:
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js = client.jetstream()
        publish = partial(js.publish, CLOSED_SUBJECT, b"late")
        await is_left(client, publish, match="holds events: set it to 1")
        assert (await js.get_msg(JOBS, 1)).data == b"late"


async def undo(js: JetStreamContext) -> None:
    for name in FOUR:
        await js.delete_stream(name)
    one = (await js.stream_info(JOBS)).config
    await js.update_stream(one.evolve(subjects=ONE[JOBS]))


async def begin_to_undo(js: JetStreamContext) -> None:
    one = (await js.stream_info(JOBS)).config
    await js.update_stream(one.evolve(subjects=[UNDO_SUBJECT]))


@pytest.mark.parametrize("step", [undo, begin_to_undo])
async def test_a_process_that_stood_still_leaves_what_another_undoes(
    nats_server: NatsServer, step: Callable[[JetStreamContext], Awaitable[None]]
) -> None:
    """It is the log again, and nothing is in it yet."""
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        await is_left(client, partial(step, client.jetstream()), match="one stream still")


async def test_two_processes_that_undo_a_change_at_once_lose_nothing(
    nats_server: NatsServer,
) -> None:
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js, late = client.jetstream(), new_id()
        config = await close(js)
        await late_write(js, late, subjects=[CLOSED_SUBJECT])
        await add_parts(js, config, *FOUR)
        buses = [Bus(nats_server.url, name="test", log_streams=LogStreams(n)) for n in (1, 4, 1, 4)]
        for bus in buses:
            bus.start()
        await asyncio.gather(*(asyncio.wait_for(bus.wait_connected(), 20) for bus in buses[::2]))
        for bus in buses:
            await bus.close()
        await check_goes_on(nats_server, client, late)


async def test_what_another_ends_as_it_is_to_be_undone_is_left(nats_server: NatsServer) -> None:
    class Ending(JetStreamContext):
        """Another process had its last look before."""

        async def update_stream(
            self, config: StreamConfig | None = None, **params: Any
        ) -> StreamInfo:
            assert config is not None
            info = await super().update_stream(config, **params)
            if config.subjects == [UNDO_SUBJECT]:
                await self.delete_stream(JOBS)
            return info

    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js = Ending(client)
        config = await close(js)
        await late_write(js, new_id(), subjects=[CLOSED_SUBJECT])
        await add_parts(js, config, *FOUR)
        setup = StreamSetup(replicas=1, log_max_bytes=-1, log_streams=LogStreams(4))
        assert await setup.prepare(js)
        assert await log_streams(client) == FOUR


@pytest.mark.parametrize("subjects", [[UNDO_SUBJECT], [CLOSED_SUBJECT]])
async def test_what_is_to_be_undone_is_undone_by_a_start(
    nats_server: NatsServer, subjects: list[str]
) -> None:
    """With a write that was under way, or without."""
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js, late = client.jetstream(), new_id()
        config = await close(js)
        await late_write(js, late, subjects=subjects)
        await add_parts(js, config, *FOUR)
        if subjects == [UNDO_SUBJECT]:
            await js.purge_stream(JOBS)
        assert await refusal(nats_server, 1) is None
        assert await log_streams(client) == ONE


# Processes that are set to different numbers.


async def test_a_process_of_another_number_leaves_the_streams_of_the_first(
    nats_server: NatsServer,
) -> None:
    await prepare_empty(nats_server, last=5)

    class Second(JetStreamContext):
        """The first one makes its streams when this one has closed the one stream."""

        async def add_stream(self, config: StreamConfig | None = None, **params: Any) -> StreamInfo:
            one = (await self.stream_info(JOBS)).config
            await add_parts(client.jetstream(), one, *FOUR, first_seq=3)
            return await super().add_stream(config, **params)

    async with operator(nats_server) as client:
        setup = StreamSetup(replicas=1, log_max_bytes=-1, log_streams=LogStreams(2))
        with pytest.raises(LogStreamsDiffer, match="about to become 4 streams: set it to 4"):
            await setup.prepare(Second(client))
        assert await log_streams(client) == FOUR | {JOBS: [CLOSED_SUBJECT]}


async def test_of_two_numbers_at_once_one_is_refused_and_positions_go_on(
    nats_server: NatsServer,
) -> None:
    await prepare_empty(nats_server, last=9)
    counts = (2, 4)
    said = await asyncio.gather(*(refusal(nats_server, count) for count in counts))
    count = next(count for count, why in zip(counts, said, strict=True) if why is None)
    async with connected(nats_server, log_streams=count) as bus, operator(nats_server) as client:
        assert len(await log_streams(client)) == count
        for _ in range(20):
            appended = await job_log(bus).append(event_of(new_id()), expected=0)
            assert isinstance(appended, Appended)
            assert appended.event.position > 9


# A log of several streams that lacks one.


async def test_a_used_log_that_lacks_a_stream_is_refused(nats_server: NatsServer) -> None:
    async with connected(nats_server, log_streams=4) as bus, operator(nats_server) as client:
        for _ in range(20):
            await job_log(bus).append(event_of(new_id()), expected=0)
        js = client.jetstream()
        await js.delete_stream(f"{JOBS}_2")
        said = await refusal(nats_server, 4)
        assert f"not whole: NATS has no stream {JOBS}_2," in str(said)
        assert f"{JOBS}_2" not in await log_streams(client)


async def test_a_stream_that_an_unused_log_lacks_begins_where_the_others_do(
    nats_server: NatsServer,
) -> None:
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js = client.jetstream()
        config = await close(js)
        await add_parts(js, config, f"{JOBS}_0", f"{JOBS}_1", first_seq=7)
        await js.delete_stream(JOBS)
        async with connected(nats_server, log_streams=4):
            assert await log_streams(client) == FOUR
            firsts = {(await js.stream_info(name)).config.first_seq for name in FOUR}
            assert firsts == {7}


# A stream of several that was closed, and is used all the same.


async def close_part(js: JetStreamContext, subject: str) -> None:
    """As an undoing has `JOBS_1` that died at it, and with an event, as of another process."""
    part = (await js.stream_info(f"{JOBS}_1")).config
    await js.update_stream(part.evolve(subjects=[subject], republish=None))
    await js.publish(subject, b"used")


@pytest.mark.parametrize("is_one_there", [True, False])
@pytest.mark.parametrize("suffix", ["", ".4"])
async def test_a_closed_stream_that_is_used_gets_its_subjects_back(
    nats_server: NatsServer, suffix: str, is_one_there: bool
) -> None:
    """An earlier version did not name the number of streams."""
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js = client.jetstream()
        config = await close(js)
        await add_parts(js, config, *FOUR)
        await close_part(js, f"{CLOSED_SUBJECT}.{JOBS}_1{suffix}")
        if not is_one_there:
            await js.delete_stream(JOBS)
        for count in (1, 2):
            assert await refusal(nats_server, count) is not None
        assert await refusal(nats_server, 4) is None
        assert await log_streams(client) == FOUR
        assert (await js.get_msg(f"{JOBS}_1", 1)).data == b"used"
        async with connected(nats_server, log_streams=4) as bus:
            for _ in range(10):
                async with job_log(bus).watch(job_id := new_id()) as watch:
                    await job_log(bus).append(event_of(job_id), expected=0)
                    assert await watch.next(5) is not None


async def test_streams_of_which_one_is_used_while_they_are_closed_stay(
    nats_server: NatsServer,
) -> None:
    class Using(JetStreamContext):
        """Another process stores something in the last one as it is closed."""

        async def update_stream(
            self, config: StreamConfig | None = None, **params: Any
        ) -> StreamInfo:
            assert config is not None
            info = await super().update_stream(config, **params)
            if config.name == f"{JOBS}_3" and config.subjects != FOUR[f"{JOBS}_3"]:
                await self.publish((config.subjects or [""])[0], b"used")
            return info

    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js = Using(client)
        config = await close(js)
        await late_write(js, new_id(), subjects=[CLOSED_SUBJECT])
        await add_parts(js, config, *FOUR)
        setup = StreamSetup(replicas=1, log_max_bytes=-1)
        with pytest.raises(LogStreamsDiffer):
            await setup.prepare(js)
        assert await log_streams(client) == FOUR | {JOBS: [CLOSED_SUBJECT]}
