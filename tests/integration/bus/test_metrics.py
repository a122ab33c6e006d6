"""Processes that are asked for their metrics, on a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.telemetry.metrics import answer_metrics, ask_metrics
from events.bus.telemetry.streams import stored_after, stream_states
from events.decisions import Submit
from events.ids import new_id
from events.log import JobWriter, utc_now
from serve_app.local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.events import submitted
from tests.support.polling import eventually


def says(data: bytes) -> Callable[[], Awaitable[bytes]]:
    async def said() -> bytes:
        if data == b"broken":
            raise TypeError("nobody foresaw this")
        return data

    return said


@asynccontextmanager
async def answering(server: NatsServer, *answers: bytes) -> AsyncIterator[None]:
    """A process for each answer, on a connection of its own."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_process(server, each)) for each in answers]
        yield
        for task in tasks:
            task.cancel()


async def _process(server: NatsServer, answer: bytes) -> None:
    async with connected(server) as bus:
        await answer_metrics(bus, says(answer))


async def test_all_processes_answer_and_nobody_waits_for_more(
    bus: Bus, nats_server: NatsServer
) -> None:
    async with answering(nats_server, b"one", b"two"):

        async def asked() -> bool:
            return sorted(await ask_metrics(bus, enough=2, timeout_s=0.5)) == [b"one", b"two"]

        await eventually(asked)
        answers = await asyncio.wait_for(ask_metrics(bus, enough=2, timeout_s=300), 10)
        assert sorted(answers) == [b"one", b"two"]


async def test_a_process_that_does_not_answer_is_missing(bus: Bus, nats_server: NatsServer) -> None:
    assert await ask_metrics(bus, enough=1, timeout_s=0.2) == []
    async with answering(nats_server, b"broken", b"well"):

        async def asked() -> bool:
            return await ask_metrics(bus, enough=2, timeout_s=0.5) == [b"well"]

        await eventually(asked)


async def test_nobody_is_asked_where_the_bus_is_away(nats_server: NatsServer) -> None:
    async with connected(nats_server) as bus:
        nats_server.stop()
        assert await ask_metrics(bus, enough=1, timeout_s=0.2) == []


async def test_streams_say_what_they_hold_and_since_when(bus: Bus) -> None:
    before = await stream_states(bus)
    assert (before["JOBS"].messages, before["JOBS"].last_sequence) == (0, 0)
    assert await stored_after(bus, 0) is None
    began = utc_now()
    writer = JobWriter(JetStreamLog(bus))
    for _ in range(2):
        await writer.submit(new_id(), Submit(submitted()))
    after = await stream_states(bus)
    assert (after["JOBS"].messages, after["JOBS"].last_sequence) == (2, 2)
    assert after["JOBS"].size_bytes > 0
    assert set(after) == {"JOBS", "QUEUE", "CALLBACKS", "DELIVERIES", "CANARY"}
    stored_at = await stored_after(bus, 1)
    assert stored_at is not None
    assert 0 <= (stored_at - began).total_seconds() < 60
    assert await stored_after(bus, 2) is None
