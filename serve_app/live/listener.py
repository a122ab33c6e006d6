"""What waits to be sent on one stream, which is little: whoever reads slowly is cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from events.result import Status
from events.streams.log_streams import LogPlace
from events.types import Event
from serve_app.sending.timed_stream import SlowReader


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """A stored event, on its way to those who watch."""

    event: Event
    """Without its request."""
    message: bytes

    @property
    def position(self) -> int:
        return self.event.position


@dataclass(frozen=True, slots=True)
class Filter:
    """The jobs and events that a stream of an owner has; None is any."""

    status: Status | None = None
    endpoint: str | None = None

    def takes(self, status: Status, endpoint: str) -> bool:
        return self.status in {None, status} and self.endpoint in {None, endpoint}


class Passing(StrEnum):
    """What is told of a job and not stored."""

    PROGRESS = "progress"
    PREVIEW = "preview"


class Listener:
    """Stored events in their order, and of what is not stored the newest of each kind and job."""

    def __init__(
        self,
        *,
        most_events: int,
        only: Filter | None = None,
        after: LogPlace = 0,
        waiting: Sequence[LiveEvent] = (),
    ) -> None:
        """`most_events`: how many may wait, and of how many jobs what is not stored.

        What is up to the place `after` is passed over. `waiting` is there already.
        """
        self.only = only or Filter()
        self._most_events = most_events + len(waiting)
        self.after = after
        """What is up to this place it passes over."""
        self._events = list(waiting)
        self._passing: dict[tuple[str, Passing], bytes] = {}
        self._is_late = False
        self._is_ended = False
        self._news = asyncio.Event()
        if waiting:
            self._news.set()

    def put(self, event: LiveEvent) -> None:
        """It waits for `next`. Where too many do, `next` raises SlowReader instead."""
        if event.position <= self.after:
            return
        for kind in Passing:
            self._passing.pop((event.event.job_id, kind), None)
        if len(self._events) >= self._most_events:
            self._is_late = True
            self._events.clear()
        if not self._is_late:
            self._events.append(event)
        self._news.set()

    def put_passing(self, job_id: str, kind: Passing, message: bytes) -> None:
        """It takes the place of what was there before, and goes with the next stored event."""
        place = (job_id, kind)
        if place in self._passing or len(self._passing) < self._most_events:
            self._passing[place] = message
            self._news.set()

    def end(self) -> None:
        """Nothing comes any more."""
        self._is_ended = True
        self._news.set()

    async def next(self, timeout_s: float) -> tuple[list[LiveEvent], list[bytes]] | None:
        """Stored events and other messages, all that wait; None once there is nothing to come.

        Both are empty where nothing came in time. Raises SlowReader.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return [], []
        if self._is_late:
            raise SlowReader
        events, passing = self._events, list(self._passing.values())
        self._events, self._passing = [], {}
        if self._is_ended and not events:
            return None
        if not self._is_ended:
            self._news.clear()
        return events, passing
