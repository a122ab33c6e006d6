"""Processes that are asked for their metrics and dispatchers for their endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from events.bus.bus import Bus
from events.bus.health import stored_after, stream_states
from events.bus.jetstream_log import JetStreamLog
from events.bus.request_reply import answer_metrics, answer_status, ask_metrics, ask_status
from events.decisions import Submit
from events.errors import JobDamaged, LogUnavailable
from events.ids import new_id
from events.log import JobWriter, utc_now
from local.nats_server import NatsServer
from tests.support.bus import connected
from tests.support.events import submitted
from tests.support.polling import eventually, running


def says(data: bytes) -> Callable[[], Awaitable[bytes]]:
    async def said() -> bytes:
        if data == b"broken":
            raise TypeError("nobody foresaw this")
        return data

    return said


@asynccontextmanager
async def answering(server: NatsServer, *answers: bytes) -> AsyncIterator[None]:
    """A process for each answer, on a connection of its own."""
    async with AsyncExitStack() as stack:
        for answer in answers:
            bus = await stack.enter_async_context(connected(server))
            await stack.enter_async_context(running(answer_metrics(bus, says(answer))))
        yield


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


async def test_whoever_dispatches_an_endpoint_answers(bus: Bus) -> None:
    async def mine(endpoint: str) -> Mapping[str, Any] | None:
        if endpoint == "troubled":
            raise LogUnavailable
        if endpoint == "broken":
            raise JobDamaged
        return {"workers": [], "rate_per_s": 0.5} if endpoint == "mine" else None

    async def nothing(_endpoint: str) -> None:
        return None

    assert await ask_status(bus, "mine") is None
    async with AsyncExitStack() as stack:
        for status in (nothing, mine, nothing):
            await stack.enter_async_context(running(answer_status(bus, status)))
        answer = await eventually(lambda: ask_status(bus, "mine"))
        assert answer == {"workers": [], "rate_per_s": 0.5}
        for other in ("another", "troubled", "broken"):
            assert await ask_status(bus, other) is None
        assert await ask_status(bus, "mine") == answer
