"""How the bus tells of its streams: apart, since workers load neither Prometheus nor SQLAlchemy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from events.log import StreamState


@dataclass(frozen=True, slots=True)
class Streams:
    """How the bus tells of its streams. Both raise LogUnavailable."""

    states: Callable[[], Awaitable[Mapping[str, StreamState]]]
    """By name."""
    log: str
    """The name of the one that is the log."""
    stored_after: Callable[[int], Awaitable[datetime | None]]
    """When the log stored the event that follows a position; None where none does."""
