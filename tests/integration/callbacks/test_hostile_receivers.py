"""Receivers that do everything a receiver should not."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import AsyncExitStack

import psutil
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from events.types import CallbackAttempted, CallbackDelivered, CallbackExhausted, EventData
from events.webhook_secret import webhook_secret
from tests.support.callbacks.receiver import (
    CERTIFICATE,
    Answer,
    Large,
    Received,
    Receiver,
    drip_body,
    drip_headers,
    flood_headers,
    flood_interim,
    hang,
    reset,
    status,
)
from tests.support.callbacks.role import SECRET, SETTINGS, World

MIB = 1024 * 1024
SHORT = SETTINGS.model_copy(
    update={
        "timeout_s": 0.5,
        "connect_timeout_s": 0.3,
        "delays_s": (0, *[0.05] * 4),
        "breaker_failures": 1000,
    }
)
"""Five tries; the breaker has its own tests."""


def tries_of(events: list[EventData]) -> list[CallbackAttempted]:
    return [each for each in events if isinstance(each, CallbackAttempted)]


def verify(request: Received) -> None:
    """Check the signature as a receiver does; with any byte of the body changed it is wrong."""
    webhook = Webhook(webhook_secret(SECRET, "k1"))
    webhook.verify(request.body, request.headers)
    for place in range(len(request.body)):
        changed = bytearray(request.body)
        changed[place] ^= 1
        with pytest.raises(WebhookVerificationError):
            webhook.verify(bytes(changed), request.headers, json_parse=False)


@pytest.mark.parametrize(
    ("answer", "tries", "outcome"),
    [
        (status(500), 5, "500"),
        (hang, 5, "no answer within 0.5 s"),
        (drip_headers, 5, "no answer within 0.5 s"),
        (flood_headers, 5, "Protocol|no answer"),
        (flood_interim, 5, "Protocol|no answer"),
        (reset, 5, "connection was lost"),
        (status(429, headers="Retry-After: 0\r\n"), 5, "429"),
        (status(302, headers="Location: http://127.0.0.1:1/\r\n"), 3, "302"),
        (status(404), 3, "404"),
        (status(410), 1, "410"),
    ],
)
async def test_what_fails_is_tried_as_often_as_the_policy_says(
    world: World, answer: Answer, tries: int, outcome: str
) -> None:
    async with Receiver([answer]) as receiver, world.callbacks(settings=SHORT):
        events = await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == tries
        for request in receiver.received:
            verify(request)
    assert len(tries_of(events)) == tries
    end = events[-1]
    assert isinstance(end, CallbackExhausted)
    assert end.attempts == tries
    assert any(part in end.message for part in outcome.split("|"))
    assert all(data.latency_s < 5 for data in tries_of(events))


@pytest.mark.parametrize("answer", [drip_body, Large(100_000_000)], ids=["drip", "large"])
async def test_what_took_it_is_not_tried_again_whatever_becomes_of_its_answer(
    world: World, answer: Answer
) -> None:
    async with Receiver([answer]) as receiver, world.callbacks(settings=SHORT):
        events = await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 1
    assert events[-1] == CallbackDelivered(attempt=1)


async def test_bad_tls_is_tried_again_and_nothing_is_told_to_it(world: World) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    async with Receiver(ssl_context=context) as receiver, world.callbacks(settings=SHORT):
        url = receiver.url.replace("http://", "https://")
        events = await world.end(await world.ended_job(url))
        assert len(tries_of(events)) == 5
        assert receiver.received == []
    assert isinstance(events[-1], CallbackExhausted)
    assert "certificate" in events[-1].message.lower()


async def test_retry_after_is_waited_for(world: World) -> None:
    answers = [status(429, headers="Retry-After: 2\r\n"), status(200)]
    async with Receiver(answers) as receiver, world.callbacks(settings=SHORT):
        events = await world.end(await world.ended_job(receiver.url))
        assert len(receiver.received) == 2
    assert [each.status for each in tries_of(events)] == [429, 200]
    first, second = (int(each.headers["webhook-timestamp"]) for each in receiver.received)
    assert second - first >= 1, "whole seconds, rounded down"


async def test_nobody_listens_and_it_is_tried_again(world: World) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        async with world.callbacks(settings=SHORT):
            events = await world.end(
                await world.ended_job(f"http://127.0.0.1:{free.getsockname()[1]}/")
            )
    assert len(tries_of(events)) == 5


async def test_memory_stays_flat_however_much_is_answered(world: World) -> None:
    """2 GB of answers, bodies and headers; they would show if they were kept."""
    large = [Large(100_000_000) for _ in range(20)]
    hostile: list[Answer] = [*large, *[flood_headers] * 10, *[flood_interim] * 10]
    process = psutil.Process()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(world.callbacks(settings=SHORT))
        first = await stack.enter_async_context(Receiver([Large(100_000_000), flood_headers]))
        await world.end(await world.ended_job(first.url))
        before = process.memory_info().rss
        highest = asyncio.create_task(_highest_rss(process))
        receivers = [await stack.enter_async_context(Receiver([each])) for each in hostile]
        for job_id in [await world.ended_job(each.url) for each in receivers]:
            await world.end(job_id)
        highest.cancel()
        most = await highest
    assert most - before < 64 * MIB
    assert max(each.written_bytes for each in large) < 20_000_000


async def _highest_rss(process: psutil.Process) -> int:
    """The most memory in use until the task is cancelled, in bytes."""
    highest = 0
    try:
        while True:
            highest = max(highest, process.memory_info().rss)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        return highest
