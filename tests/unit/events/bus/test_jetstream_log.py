"""What the log asks JetStream for. What it promises is in the contract tests."""

from __future__ import annotations

from typing import cast

import pytest

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.puller import Message
from events.cloud_events import encode
from events.types import EventData, Started
from tests.support.events import JOB_ID, history_of, submitted


class CountingBus:
    """Has one job's messages."""

    def __init__(self, *events: EventData) -> None:
        self.messages = [
            Message(f"jobs.1.{JOB_ID}", encode(event), event.position)
            for event in history_of(*events)
        ]
        self.calls: list[str] = []

    async def last(self, stream: str, subject: str) -> Message:
        self.calls.append("last")
        return self.messages[-1]

    async def batch(self, stream: str, subject: str, **options: object) -> list[Message]:
        self.calls.append("batch")
        return self.messages


@pytest.mark.parametrize(
    ("events", "calls"),
    [
        ([submitted()], ["last"]),
        ([submitted(), Started(attempt=1, actor="a")], ["last", "batch"]),
    ],
    ids=["one event", "two events"],
)
async def test_a_first_event_that_is_the_last_is_the_whole_history(
    events: list[EventData], calls: list[str]
) -> None:
    bus = CountingBus(*events)
    history = await JetStreamLog(cast(Bus, bus)).read(JOB_ID)
    assert [event.data for event in history] == events
    assert bus.calls == calls
