"""The bounded buffer of one event stream. A client that reads too slowly is disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from events.result import Status
from events.types import Event
from serve_app.stored_file import SlowReader


@dataclass(frozen=True, slots=True)
class LiveEvent:
    """A stored event and its encoded message."""

    event: Event
    """The event without its request."""
    message: bytes

    @property
    def position(self) -> int:
        return self.event.position


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects the events of an owner's stream by status and endpoint. None selects all."""

    status: Status | None = None
    endpoint: str | None = None

    def takes(self, status: Status, endpoint: str) -> bool:
        return self.status in {None, status} and self.endpoint in {None, endpoint}


class UnstoredKind(StrEnum):
    """The kinds of messages about a job that are sent to listeners but not stored in the log."""

    PROGRESS = "progress"
    PREVIEW = "preview"


class Listener:
    """Buffers stored events in order, and the newest unstored message of each kind and job."""

    def __init__(
        self,
        *,
        most_events: int,
        only: Filter | None = None,
        after: int = 0,
        waiting: Sequence[LiveEvent] = (),
    ) -> None:
        """`most_events` limits the buffered events, and also the buffered unstored messages.

        Events up to the offset `after` are ignored. `waiting` is the initial content.
        """
        self.only = only or Filter()
        self._most_events = most_events + len(waiting)
        self.after = after
        self._events = list(waiting)
        self._unstored: dict[tuple[str, UnstoredKind], bytes] = {}
        self._is_late = False
        self._is_ended = False
        self._news = asyncio.Event()
        if waiting:
            self._news.set()

    def put(self, event: LiveEvent) -> None:
        """Buffer an event for `next`. If too many are buffered, `next` raises SlowReader."""
        if event.position <= self.after:
            return
        for kind in UnstoredKind:
            self._unstored.pop((event.event.job_id, kind), None)
        if len(self._events) >= self._most_events:
            self._is_late = True
            self._events.clear()
        if not self._is_late:
            self._events.append(event)
        self._news.set()

    def put_unstored(self, job_id: str, kind: UnstoredKind, message: bytes) -> None:
        """Buffer a message instead of the earlier message of the same kind and job.

        A stored event of the job removes the message. If too many messages are buffered, the new
        message is dropped.
        """
        key = (job_id, kind)
        if key in self._unstored or len(self._unstored) < self._most_events:
            self._unstored[key] = message
            self._news.set()

    def end(self) -> None:
        """End the stream. `next` still returns the buffered events."""
        self._is_ended = True
        self._news.set()

    async def next(self, timeout_s: float) -> tuple[list[LiveEvent], list[bytes]] | None:
        """Return all buffered events and other messages; None after the end of the stream.

        Both lists are empty if nothing arrives for `timeout_s`. Raises SlowReader.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        except TimeoutError:
            return [], []
        if self._is_late:
            raise SlowReader
        events, unstored = self._events, list(self._unstored.values())
        self._events, self._unstored = [], {}
        if self._is_ended and not events:
            return None
        if not self._is_ended:
            self._news.clear()
        return events, unstored
