"""What dispatchers tell each other of running jobs over core NATS. Nothing is stored."""

from __future__ import annotations

from collections.abc import Callable

from events.bus.bus import Bus
from events.bus.streams import RUNNING_SUBJECT
from events.errors import LogUnavailable
from events.retry import keep_trying
from events.wire.running import MalformedRunning, RunningCounts, decode_running


async def tell_running(bus: Bus, counts: RunningCounts) -> None:
    """Is lost where there is no connection."""
    await bus.publish(RUNNING_SUBJECT, counts.encode())


async def hear_running(bus: Bus, hear: Callable[[RunningCounts], None]) -> None:
    """Call `hear` with what is told, by this process too, until cancelled."""
    await bus.wait_connected()

    async def listen() -> None:
        async with bus.subscribe(RUNNING_SUBJECT) as feed:
            while True:
                data = (await feed.get()).data
                try:
                    counts = decode_running(data)
                except MalformedRunning:
                    continue
                hear(counts)

    await keep_trying(listen, on=LogUnavailable, first_pause_s=1, longest_pause_s=1)
