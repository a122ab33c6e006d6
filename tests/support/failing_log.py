"""A log that fails when a test says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

from events.errors import OutcomeUnknown
from events.log import Appended, Conflict, StoredEvent, utc_now
from events.types import Broken, Event, Unknown, Unreadable
from tests.support.memory.log import MemoryLog, MemorySubscription


class FailingLog(MemoryLog):
    """A log that raises `append_error`, `read_error` and `purge_error` while they are set.

    With `stores_first` a failed append has stored its event, as if its answer was lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.append_error: Exception | None = None
        self.read_error: Exception | None = None
        self.purge_error: Exception | None = None
        self.stores_first = False
        self.reads: Counter[str] = Counter()
        """How often each job was read."""
        self.unreadable: set[str] = set()
        """Jobs whose last message is not an event."""
        self.of_later_version: set[str] = set()
        """Jobs whose last event is of a later version."""
        self.watched = asyncio.Event()
        """Set once somebody waits for the events of a job."""

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        if self.append_error is None:
            return await super().append(event, expected=expected)
        if self.stores_first:
            await super().append(event, expected=expected)
        raise self.append_error

    async def read(self, job_id: str) -> list[Event]:
        self.reads[job_id] += 1
        if self.read_error is not None:
            raise self.read_error
        events = await super().read(job_id)
        if job_id in self.unreadable:
            events.append(_behind(events, job_id, Broken(why="cut off")))
        if job_id in self.of_later_version:
            unknown = Unknown(original_type="darkroom.job.paused.v1")
            events.append(_behind(events, job_id, unknown))
        return events

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[MemorySubscription]:
        async with super().watch(job_id) as subscription:
            self.watched.set()
            yield subscription

    @property
    def last_position(self) -> int:
        if self.read_error is not None:
            raise self.read_error
        return super().last_position

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        found = await super().read_raw(job_ids)
        for job_id in self.unreadable & found.keys():
            last = found[job_id][-1].sequence
            found[job_id] += (StoredEvent(last + 1, b"not an event"),)
        return found

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        if self.purge_error is not None:
            raise self.purge_error
        await super().purge(job_id, keep=keep, upto=upto)

    def lose_answers(self) -> None:
        """Store further events, but lose the answers."""
        self.append_error, self.stores_first = OutcomeUnknown(), True

    def recover(self) -> None:
        self.append_error = self.read_error = self.purge_error = None


def _behind(events: list[Event], job_id: str, data: Unreadable) -> Event:
    """Return the event as if it was the last one of the job."""
    version, position = (events[-1].version, events[-1].position) if events else (0, 0)
    return Event(
        id="", job_id=job_id, version=version + 1, time=utc_now(), data=data, position=position + 1
    )
