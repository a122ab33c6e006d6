"""The event log in memory, which replaces the JetStream log in tests of its users."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager

from events.bus.jetstream_log import EventConsumer
from events.cloud_events import encode
from events.errors import HistoryGone
from events.log import Appended, Conflict, StoredEvent, at_position
from events.types import Event

_READ_TIMEOUT_S = 10.0


class MemoryLog:
    """Keeps the same promises as the JetStream log, but only while the process lives."""

    def __init__(self) -> None:
        self._events: list[Event | None] = []
        """The events in order; None for a purged one."""
        self._by_job: dict[str, list[Event]] = defaultdict(list)
        self._changed = asyncio.Condition()

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        history = self._by_job[event.job_id]
        mine = next((known for known in history if known.id == event.id), None)
        if mine is not None:
            return Appended(mine)
        if not history and expected:
            raise HistoryGone
        if (history[-1].position if history else 0) != expected:
            return Conflict(tuple(known for known in history if known.position > expected))
        position = len(self._events) + 1
        appended = at_position(event, position, size_bytes=len(encode(event)))
        self._events.append(appended)
        history.append(appended)
        async with self._changed:
            self._changed.notify_all()
        return Appended(appended)

    async def read(self, job_id: str) -> list[Event]:
        return list(self._by_job[job_id])

    async def last(self, job_id: str) -> Event | None:
        history = self._by_job[job_id]
        return history[-1] if history else None

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return {
            job_id: tuple(StoredEvent(event.position, encode(event)) for event in history)
            for job_id in job_ids
            if (history := self._by_job[job_id])
        }

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        history = self._by_job[job_id]
        kept = history[-keep:] if keep else []
        if upto is not None:
            kept = [event for event in history if event.position > upto]
        for event in history[: len(history) - len(kept)]:
            self._events[event.position - 1] = None
        self._by_job[job_id] = kept

    def job_ids(self) -> list[str]:
        """Every job that has events."""
        return [job_id for job_id, history in self._by_job.items() if history]

    @property
    def last_position(self) -> int:
        """The position of the last event that was ever stored."""
        return len(self._events)

    @asynccontextmanager
    async def reader(self, *, after: int) -> AsyncGenerator[MemoryReader]:
        yield MemoryReader(self._events, self._changed, after=after)

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[MemorySubscription]:
        reader = MemoryReader(self._events, self._changed, after=len(self._events))
        yield MemorySubscription(reader, job_id)


class MemoryConsumer(EventConsumer):
    """A consumer of a whole `MemoryLog`, which begins at the start in each run."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        async with self._log.reader(after=0) as reader, asyncio.TaskGroup() as group:
            while True:
                for event in await reader.next(_READ_TIMEOUT_S):
                    group.create_task(_handled(handle, event))


async def _handled(handle: Callable[[Event], Awaitable[None]], event: Event) -> None:
    await handle(event)


class MemoryReader:
    def __init__(
        self, events: list[Event | None], changed: asyncio.Condition, *, after: int
    ) -> None:
        self._events = events
        self._changed = changed
        self._after = after

    async def next(self, timeout_s: float) -> list[Event]:
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: len(self._events) > self._after)
        except TimeoutError:
            return []
        batch = self._events[self._after :]
        self._after = len(self._events)
        return [event for event in batch if event is not None]


class MemorySubscription:
    def __init__(self, reader: MemoryReader, job_id: str) -> None:
        self._reader = reader
        self._job_id = job_id
        self._waiting: list[Event] = []

    async def next(self, timeout_s: float) -> Event | None:
        try:
            async with asyncio.timeout(timeout_s):
                while not self._waiting:
                    batch = await self._reader.next(timeout_s)
                    self._waiting += [event for event in batch if event.job_id == self._job_id]
        except TimeoutError:
            return None
        return self._waiting.pop(0)
