"""How much streams hold, and since when something stands in the log."""

from __future__ import annotations

from datetime import datetime

from events.bus.bus import Bus
from events.bus.streams import JOBS, REPUBLISH_FROM, STREAMS
from events.log import StreamState

_TIME = "Nats-Time-Stamp"


async def stream_states(bus: Bus) -> dict[str, StreamState]:
    """By name. Raises LogUnavailable."""
    return {spec.name: await bus.state(spec.name) for spec in STREAMS}


async def stored_after(bus: Bus, position: int) -> datetime | None:
    """When the log stored the event that follows a position; None where none does.

    Raises LogUnavailable.
    """
    following = await bus.listing(JOBS, REPUBLISH_FROM, after=position, count=1)
    return datetime.fromisoformat(following[0].headers[_TIME]) if following else None
