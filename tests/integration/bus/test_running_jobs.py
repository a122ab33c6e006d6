"""What dispatchers tell each other of running jobs, on a real nats-server."""

from __future__ import annotations

import asyncio

from events.bus.bus import Bus
from events.bus.dispatching.running_jobs import hear_running, tell_running
from events.bus.streams import RUNNING_SUBJECT
from events.wire.running import RunningCounts
from tests.support.polling import eventually


async def test_counts_come_as_they_were_told(bus: Bus) -> None:
    heard: list[RunningCounts] = []
    hearing = asyncio.create_task(hear_running(bus, heard.append))
    counts = RunningCounts("one", {f"owner {n}": n for n in range(20_000)}, is_whole=True)

    async def is_heard() -> bool:
        await bus.publish(RUNNING_SUBJECT, b"nothing of the kind")
        await tell_running(bus, counts)
        return counts in heard

    try:
        await eventually(is_heard)
        assert not hearing.done()
    finally:
        hearing.cancel()
        await asyncio.wait({hearing})
    assert set(map(len, [each.by_owner for each in heard])) == {20_000}
