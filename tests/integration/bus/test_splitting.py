"""A change from one stream to several on a real nats-server that does not go as it should."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, StreamInfo

from events.bus.bus import Bus
from events.bus.logs.job_log import job_log
from events.bus.logs.log_setup import CLOSED_SUBJECT, RESTORE_SUBJECT, LogStreamsDiffer
from events.bus.stream_setup import StreamSetup
from events.bus.streams import JOBS, job_subject
from events.ids import new_id
from events.log import Appended
from events.streams.log_streams import LogStreams
from events.wire.cloud_events import encode
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


@pytest.fixture(autouse=True)
def nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other process has to hear that a change is to be undone."""
    monkeypatch.setattr("events.bus.logs.splitting._ANNOUNCED_S", 0.0)


# A write that was under way when the stream was closed.


class Late(JetStreamContext):
    """One comes once the stream is closed, before the stream `behind` is made."""

    job_id = new_id()
    behind = f"{JOBS}_0"

    async def add_stream(self, config: StreamConfig | None = None, **params: Any) -> StreamInfo:
        assert config is not None
        if config.name == self.behind:
            await late_write(self, self.job_id, subjects=[CLOSED_SUBJECT])
        return await super().add_stream(config, **params)


@pytest.mark.parametrize("last", [0, 5])
async def test_a_change_that_meets_a_late_write_is_undone(
    nats_server: NatsServer, last: int
) -> None:
    await prepare_empty(nats_server, last=last)
    async with operator(nats_server) as client:
        setup = StreamSetup(replicas=1, log_max_bytes=-1, log_streams=LogStreams(4))
        with pytest.raises(LogStreamsDiffer, match="holds events: set it to 1"):
            await setup.prepare(Late(client))
        assert await log_streams(client) == ONE
        assert "holds events: set it to 1" in str(await refusal(nats_server, 4))
        await check_goes_on(nats_server, client, Late.job_id)


async def test_a_size_that_was_changed_meanwhile_stays(nats_server: NatsServer) -> None:
    class Enlarging(Late):
        async def add_stream(self, config: StreamConfig | None = None, **params: Any) -> StreamInfo:
            one = (await self.stream_info(JOBS)).config
            await self.update_stream(one.evolve(max_bytes=2_000_000))
            return await super().add_stream(config, **params)

    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        setup = StreamSetup(replicas=1, log_max_bytes=-1, log_streams=LogStreams(4))
        with pytest.raises(LogStreamsDiffer):
            await setup.prepare(Enlarging(client))
        config = (await client.jetstream().stream_info(JOBS)).config
        assert (config.max_bytes, config.subjects) == (2_000_000, ["jobs.*.*"])


async def test_a_change_that_another_process_has_ended_is_not_undone(
    nats_server: NatsServer,
) -> None:
    class Beaten(Late):
        """The other one looked for late writes before there was one."""

        async def stream_info(self, name: str, *args: Any) -> StreamInfo:
            info = await super().stream_info(name, *args)
            if name == JOBS and info.state.messages:
                await self.delete_stream(JOBS)
            return info

    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        setup = StreamSetup(replicas=1, log_max_bytes=-1, log_streams=LogStreams(4))
        await setup.prepare(Beaten(client))
        assert await log_streams(client) == FOUR


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("undone", [0, 1, 2])
async def test_a_change_that_died_with_a_late_write_is_undone_by_a_start(
    nats_server: NatsServer, count: int, undone: int
) -> None:
    """Of any number of streams. `undone`: how far a start came that died at that, too."""
    await prepare_empty(nats_server, last=5)
    async with operator(nats_server) as client:
        js, late = client.jetstream(), new_id()
        config = await close(js)
        await late_write(js, late, subjects=[CLOSED_SUBJECT])
        await add_parts(js, config, f"{JOBS}_0", f"{JOBS}_1", first_seq=3)
        if undone:
            await js.delete_stream(f"{JOBS}_0")
        if undone == 2:
            part = (await js.stream_info(f"{JOBS}_1")).config
            await js.update_stream(part.evolve(subjects=[f"{CLOSED_SUBJECT}.{JOBS}_1"]))
        said = await refusal(nats_server, count, prepares=False)
        first = "" if count == 1 else "set it to 1 and "
        assert f"was to become several: {first}start the service" in str(said)
        said = await refusal(nats_server, count)
        assert (said is None) == (count == 1)
        assert await log_streams(client) == ONE
        await check_goes_on(nats_server, client, late)


async def test_a_stream_that_something_was_stored_in_is_not_removed(
    nats_server: NatsServer,
) -> None:
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js, job_id = client.jetstream(), new_id()
        config = await close(js)
        await late_write(js, new_id(), subjects=[CLOSED_SUBJECT])
        await add_parts(js, config, *FOUR)
        await js.publish(job_subject(job_id), encode(event_of(job_id)))
        for count in (1, 4):
            assert await refusal(nats_server, count) is not None
        assert await log_streams(client) == FOUR | {JOBS: [CLOSED_SUBJECT]}


# A change that died, and is gone on with by other settings.


@pytest.mark.parametrize("last", [0, 5])
async def test_a_change_is_gone_on_with_by_another_size(nats_server: NatsServer, last: int) -> None:
    await prepare_empty(nats_server, last=last)
    async with operator(nats_server) as client:
        js = client.jetstream()
        config = await close(js)
        first = {"first_seq": 3} if last else {}
        await add_parts(js, config, f"{JOBS}_0", f"{JOBS}_1", max_bytes=1_000_000, **first)
        bus = Bus(nats_server.url, name="test", log_max_bytes=8_000_000, log_streams=LogStreams(4))
        bus.start()
        await asyncio.wait_for(bus.wait_connected(), 10)
        assert await log_streams(client) == FOUR
        assert {await bus.max_bytes(name) for name in FOUR} == {2_000_000}
        appended = await job_log(bus).append(event_of(new_id()), expected=0)
        assert isinstance(appended, Appended)
        assert appended.event.position > last
        await bus.close()


async def test_a_stream_that_begins_too_early_is_made_anew(nats_server: NatsServer) -> None:
    """As of a change before the one stream's last events, which have left it since."""
    await prepare_empty(nats_server, last=9)
    async with operator(nats_server) as client:
        js = client.jetstream()
        config = await close(js)
        await add_parts(js, config, f"{JOBS}_0", first_seq=2)
        async with connected(nats_server, log_streams=4) as bus:
            assert await log_streams(client) == FOUR
            for _ in range(20):
                appended = await job_log(bus).append(event_of(new_id()), expected=0)
                assert isinstance(appended, Appended)
                assert appended.event.position > 9


@pytest.mark.parametrize("count", [1, 2, 8])
async def test_a_change_to_another_number_says_which(nats_server: NatsServer, count: int) -> None:
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js = client.jetstream()
        await add_parts(js, await close(js), *FOUR)
        for prepares in (True, False):
            said = await refusal(nats_server, count, prepares=prepares)
            assert "is about to become 4 streams: set it to 4 and start the service" in str(said)
        assert await refusal(nats_server, 4) is None
        assert await log_streams(client) == FOUR


# A restore that did not come to its end.


@pytest.mark.parametrize("subject", [RESTORE_SUBJECT, CLOSED_SUBJECT])
async def test_a_restore_that_died_is_refused_and_left_as_it_was(
    nats_server: NatsServer, subject: str
) -> None:
    """An earlier version closed the stream as a change does."""
    await prepare_empty(nats_server)
    async with operator(nats_server) as client:
        js, job_id = client.jetstream(), new_id()
        await late_write(js, new_id(), subjects=["jobs.*.*"])
        config = await close(js, subject)
        await add_parts(js, config, *FOUR, first_seq=2)
        await js.publish(job_subject(job_id), encode(event_of(job_id)))
        before = await log_streams(client)
        for count in (1, 2, 4):
            for prepares in (True, False):
                said = await refusal(nats_server, count, prepares=prepares)
                assert "is that of a restore that has not come to its end" in str(said)
        assert await log_streams(client) == before == FOUR | {JOBS: [subject]}
