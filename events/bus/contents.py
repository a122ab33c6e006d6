"""Everything that the streams hold, read without a consumer; see `events.log.LogContents`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.logs.job_log import job_log
from events.bus.streams import (
    CALLBACKS,
    DELIVERIES,
    QUEUE,
    any_callback_subject,
    delivery_subject,
    job_id_in,
    log_stream_name,
    queue_subject,
)
from events.job import Job
from events.log import EventLog, StoredEvent
from events.streams.contents import LogContents
from events.streams.log_streams import LogPlace, LogStream, LogStreams

_ONE = LogStream()
_BATCH = 64
"""Messages in memory at once, each of which may be a request of a megabyte."""
_TRY_TIMEOUT_S = 2.0


class JetStreamLogContents:
    def __init__(
        self,
        bus: Bus,
        log: JetStreamLog,
        *,
        stream: str,
        subjects: str,
        numbers: LogStream = _ONE,
    ) -> None:
        """`subjects`: how the subjects of one partition look; `numbers`: see `JetStreamLog`."""
        self._bus = bus
        self._stream = stream
        self._subjects = subjects
        self._log = log
        self._numbers = numbers

    @property
    def parts(self) -> Sequence[LogContents]:
        return (self,)

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        for partition in self._numbers.streams.partitions(self._numbers.index):
            subjects = self._subjects.format(partition)
            async for page in self._bus.pages(self._stream, subjects):
                yield [job_id_in(subject) for subject in page]

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._log.stored(job_ids)

    async def following(self, sequence: LogPlace) -> list[StoredEvent]:
        after = self._numbers.last_sequence(sequence)
        messages = await self._bus.batch(
            self._stream,
            self._subjects.format("*"),
            after=after,
            count=_BATCH,
            timeout_s=_TRY_TIMEOUT_S,
        )
        if not messages:  # or the replica lags, or did not answer in time
            first = await self._bus.first(self._stream, self._subjects.format("*"), after=after)
            messages = [] if first is None else [first]
        return [StoredEvent(self._numbers.position(each.sequence), each.data) for each in messages]

    async def last_sequence(self) -> int:
        return self._numbers.position(await self._bus.last_sequence(self._stream))


class StreamsContents:
    """Of a log that is several streams."""

    def __init__(self, parts: Sequence[LogContents], log: EventLog, streams: LogStreams) -> None:
        self.parts = parts
        self._log = log
        self._streams = streams

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        for part in self.parts:
            async for page in part.job_ids():
                yield page

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._log.stored(job_ids)

    async def following(self, sequence: LogPlace) -> list[StoredEvent]:
        """Of one stream after the other: of each there may be much."""
        for part in self.parts:
            if found := await part.following(sequence):
                return found
        return []

    async def last_sequence(self) -> LogPlace:
        ends = await asyncio.gather(*(part.last_sequence() for part in self.parts))
        return self._streams.place([end for end in ends if isinstance(end, int)])


def log_contents(bus: Bus) -> LogContents:
    """As many streams as the bus has it."""
    parts = [
        JetStreamLogContents(
            bus,
            JetStreamLog(bus, stream=log_stream_name(stream), numbers=stream),
            stream=log_stream_name(stream),
            subjects="jobs.{}.*",
            numbers=stream,
        )
        for stream in bus.log_streams.all()
    ]
    return parts[0] if len(parts) == 1 else StreamsContents(parts, job_log(bus), bus.log_streams)


def delivery_contents(bus: Bus) -> JetStreamLogContents:
    log = JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject)
    return JetStreamLogContents(bus, log, stream=DELIVERIES, subjects="deliveries.{}.*")


class JetStreamJobEntries:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        async for page in self._bus.pages(QUEUE, "queue.>"):
            yield [job_id_in(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        subject = queue_subject(job.submitted.endpoint, job.submitted.lane, job.id)
        return await self._bus.last(QUEUE, subject) is not None


class JetStreamCallbackEntries:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        async for page in self._bus.pages(CALLBACKS, "callbacks.>"):
            yield [job_id_in(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        return await self._bus.last(CALLBACKS, any_callback_subject(job.id)) is not None
