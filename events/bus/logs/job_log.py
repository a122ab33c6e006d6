"""The log of the jobs, in one stream or several: each job's events are in one of them alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.streams import log_stream_name
from events.log import (
    Appended,
    Conflict,
    EventLog,
    EventReader,
    StoredEvent,
    Subscription,
    WholeLog,
)
from events.streams.log_streams import LogPlace, LogStreams
from events.types import Event


def job_log(bus: Bus, *, append_timeout_s: float = 10.0, try_timeout_s: float = 2.0) -> WholeLog:
    """As many streams as the bus has it."""
    parts = [
        JetStreamLog(
            bus,
            stream=log_stream_name(stream),
            numbers=stream,
            append_timeout_s=append_timeout_s,
            try_timeout_s=try_timeout_s,
        )
        for stream in bus.log_streams.all()
    ]
    return parts[0] if len(parts) == 1 else StreamsLog(parts, bus.log_streams)


class StreamsLog:
    """See `events.log.EventLog`."""

    def __init__(self, parts: Sequence[EventLog], streams: LogStreams) -> None:
        """`parts`: the streams, by their indexes."""
        self.parts = parts
        self._streams = streams

    def _of(self, job_id: str) -> EventLog:
        return self.parts[self._streams.of_job(job_id)]

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        return await self._of(event.job_id).append(event, expected=expected)

    async def read(self, job_id: str) -> list[Event]:
        return await self._of(job_id).read(job_id)

    async def last(self, job_id: str) -> Event | None:
        return await self._of(job_id).last(job_id)

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        by_part: dict[int, list[str]] = {}
        for job_id in job_ids:
            by_part.setdefault(self._streams.of_job(job_id), []).append(job_id)
        looks = (self.parts[index].stored(ids) for index, ids in by_part.items())
        found: dict[str, tuple[StoredEvent, ...]] = {}
        for some in await asyncio.gather(*looks):
            found |= some
        return found

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        await self._of(job_id).purge(job_id, keep=keep, upto=upto)

    @asynccontextmanager
    async def reader(self, *, after: LogPlace) -> AsyncGenerator[EventReader]:
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(part.reader(after=after)) for part in self.parts
            ]
            reader = StreamsReader(readers)
            stack.push_async_callback(reader.stop)
            yield reader

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Subscription]:
        return self._of(job_id).watch(job_id)


class StreamsReader:
    """What several readers have, as it comes; in order in each, and not between them."""

    def __init__(self, readers: Sequence[EventReader], *, period_s: float = 5.0) -> None:
        """`period_s`: for how long each is asked at a time."""
        self._readers = readers
        self._period_s = period_s
        self._asked: dict[int, asyncio.Task[list[Event]]] = {}

    async def next(self, timeout_s: float) -> list[Event]:
        give_up_at = time.monotonic() + timeout_s
        while True:
            for index, reader in enumerate(self._readers):
                if index not in self._asked:
                    self._asked[index] = asyncio.create_task(reader.next(self._period_s))
            left_s = max(give_up_at - time.monotonic(), 0.0)
            await asyncio.wait(
                self._asked.values(), timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            answered = [index for index, task in self._asked.items() if task.done()]
            events = [event for index in answered for event in self._asked.pop(index).result()]
            if events or time.monotonic() >= give_up_at:
                return events

    async def stop(self) -> None:
        for task in self._asked.values():
            task.cancel()
        await asyncio.gather(*self._asked.values(), return_exceptions=True)
