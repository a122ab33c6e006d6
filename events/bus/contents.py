"""Everything that the streams hold, read without a consumer; see `events.log.LogContents`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection

from events.bus.bus import Bus
from events.bus.jetstream_log import JetStreamLog
from events.bus.streams import (
    CALLBACKS,
    DELIVERIES,
    JOBS,
    QUEUE,
    delivery_subject,
    due_subject,
    job_id_in,
    queue_subject,
    scheduled_subject,
)
from events.ids import PARTITIONS
from events.job import Job
from events.log import StoredEvent

_BATCH = 64
"""Messages in memory at once, each of which may be a request of a megabyte."""
_TRY_TIMEOUT_S = 2.0


class JetStreamLogContents:
    def __init__(self, bus: Bus, log: JetStreamLog, *, stream: str, subjects: str) -> None:
        """`subjects`: how the subjects of one partition look."""
        self._bus = bus
        self._stream = stream
        self._subjects = subjects
        self._log = log

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        for partition in range(PARTITIONS):
            subjects = self._subjects.format(partition)
            async for page in self._bus.pages(self._stream, subjects):
                yield [job_id_in(subject) for subject in page]

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._log.stored(job_ids)

    async def following(self, sequence: int) -> list[StoredEvent]:
        messages = await self._bus.batch(
            self._stream,
            self._subjects.format("*"),
            after=sequence,
            count=_BATCH,
            timeout_s=_TRY_TIMEOUT_S,
        )
        if not messages:  # or the replica lags, or did not answer in time
            first = await self._bus.first(self._stream, self._subjects.format("*"), after=sequence)
            messages = [] if first is None else [first]
        return [StoredEvent(each.sequence, each.data) for each in messages]

    async def last_sequence(self) -> int:
        return await self._bus.last_sequence(self._stream)


def log_contents(bus: Bus) -> JetStreamLogContents:
    return JetStreamLogContents(bus, JetStreamLog(bus), stream=JOBS, subjects="jobs.{}.*")


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
        for subject in (due_subject(job.id), scheduled_subject(job.id)):
            if await self._bus.last(CALLBACKS, subject) is not None:
                return True
        return False
