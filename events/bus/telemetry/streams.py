"""How much streams hold, and since when something stands in the log."""

from __future__ import annotations

import asyncio
from datetime import datetime

from events.bus.bus import Bus
from events.bus.streams import REPUBLISH_FROM, log_stream_name, stream_specs
from events.log import StreamState
from events.streams.log_streams import LogPlace, LogStream

_TIME = "Nats-Time-Stamp"


async def stream_states(bus: Bus) -> dict[str, StreamState]:
    """By name. Raises LogUnavailable."""
    return {spec.name: await bus.state(spec.name) for spec in stream_specs(bus.log_streams)}


async def stored_after(bus: Bus, place: LogPlace) -> datetime | None:
    """When the log stored the oldest event that follows a place; None where none does.

    Raises LogUnavailable.
    """
    looks = (_stored_after(bus, stream, place) for stream in bus.log_streams.all())
    return min((at for at in await asyncio.gather(*looks) if at is not None), default=None)


async def _stored_after(bus: Bus, stream: LogStream, place: LogPlace) -> datetime | None:
    name, after = log_stream_name(stream), stream.last_sequence(place)
    following = await bus.listing(name, REPUBLISH_FROM, after=after, count=1)
    return datetime.fromisoformat(following[0].headers[_TIME]) if following else None
