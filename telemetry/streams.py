"""How the bus tells of its streams: apart, since workers load neither Prometheus nor SQLAlchemy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from events.log import StreamState
from events.streams.log_streams import LogPlace


@dataclass(frozen=True, slots=True)
class Streams:
    """How the bus tells of its streams. Both raise LogUnavailable."""

    states: Callable[[], Awaitable[Mapping[str, StreamState]]]
    """By name."""
    log: Sequence[str]
    """The names of those that are the log, by their indexes."""
    stored_after: Callable[[LogPlace], Awaitable[datetime | None]]
    """When the log stored the oldest event that follows a place; None where none does."""
