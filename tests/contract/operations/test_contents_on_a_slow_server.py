"""What follows a position in the log, from replicas that lag, are silent or away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from events.bus.bus import Bus
from events.bus.contents import log_contents
from events.bus.jetstream_log import JetStreamLog
from events.bus.puller import Message
from events.errors import LogUnavailable
from events.ids import new_id
from events.log import Appended, utc_now
from events.types import Event
from serve_app.local.nats_server import NatsServer
from tests.support.events import submitted


class LaggingBus(Bus):
    """The replica that answers its batches has nothing yet, or answers nothing in time."""

    lags = False

    async def batch(self, *args: Any, **options: Any) -> list[Message]:
        return [] if self.lags else await super().batch(*args, **options)


@pytest.fixture
async def bus(nats_server: NatsServer) -> AsyncIterator[LaggingBus]:
    bus = LaggingBus(nats_server.url, name="test")
    bus.start()
    await asyncio.wait_for(bus.wait_connected(), 10)
    yield bus
    await bus.close()


async def submit(log: JetStreamLog) -> Event:
    event = Event(id=new_id(), job_id=new_id(), version=1, time=utc_now(), data=submitted())
    outcome = await log.append(event, expected=0)
    assert isinstance(outcome, Appended)
    return outcome.event


async def test_what_only_the_leader_has_is_not_passed_over(bus: LaggingBus) -> None:
    log = JetStreamLog(bus)
    events = [await submit(log) for _ in range(3)]
    bus.lags = True
    positions, after = [], 0
    while stored := await log_contents(bus).following(after):
        positions += [each.sequence for each in stored]
        after = positions[-1]
    assert positions == [event.position for event in events]


async def test_a_silent_server_is_no_end_of_the_log(
    bus: LaggingBus, nats_server: NatsServer
) -> None:
    await submit(JetStreamLog(bus))
    bus.lags = True
    nats_server.stop()
    with pytest.raises(LogUnavailable):
        await log_contents(bus).following(0)
