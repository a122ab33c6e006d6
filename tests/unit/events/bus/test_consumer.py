"""What a consumer has pulled and not handed over is given back when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from events.bus import jetstream_log
from events.bus.jetstream_log import EventConsumer
from events.bus.puller import Message
from events.bus.streams import ROUTER_CONSUMER
from events.errors import LogUnavailable
from events.types import Event
from tests.support.polling import eventually


class FakePuller:
    def __init__(self, messages: list[Message]) -> None:
        self.waiting = messages

    async def follow(self, *, batch: int, timeout_s: float) -> list[Message]:
        await asyncio.sleep(0)
        some, self.waiting = self.waiting[:batch], self.waiting[batch:]
        return some


class FakeBus:
    def __init__(self, messages: list[Message]) -> None:
        self.fake = FakePuller(messages)
        self.acked: set[str] = set()
        self.back: set[str] = set()

    async def ensure_consumer(self, spec: Any) -> None:
        pass

    @asynccontextmanager
    async def puller(self, *_: Any) -> AsyncIterator[FakePuller]:
        yield self.fake

    async def publish(self, subject: str, data: bytes) -> None:
        self.acked.add(subject)

    async def return_messages(
        self, puller: FakePuller, *, unacknowledged: Collection[str] = ()
    ) -> None:
        self.back |= {each.ack_subject for each in puller.waiting} | set(unacknowledged)


async def test_what_was_pulled_and_not_handed_over_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jetstream_log, "_IN_FLIGHT", 4)
    messages = [
        Message(subject=f"jobs.1.{at}", data=b"{}", sequence=at, ack_subject=f"ack.{at}")
        for at in range(1, 11)
    ]
    bus = FakeBus(messages)
    go_on, in_hand = asyncio.Event(), set[int]()

    async def handle(event: Event) -> None:
        in_hand.add(event.position)
        if event.position == 1:
            return
        await go_on.wait()
        raise LogUnavailable

    following = EventConsumer(bus, ROUTER_CONSUMER)  # type: ignore[arg-type]
    task = asyncio.create_task(following._consume(handle))
    await eventually(lambda: in_hand == {1, 2, 3, 4, 5} and len(bus.fake.waiting) == 2)
    # 1 is handled; 2..4 and 5 are in hand; 6..8 were pulled and wait for room.
    go_on.set()
    with pytest.raises(LogUnavailable):
        await task
    assert bus.acked | bus.back == {each.ack_subject for each in messages}
