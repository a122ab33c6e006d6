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
    queue_subject,
    scheduled_subject,
)
from events.ids import PARTITIONS
from events.job import Job
from events.log import StoredEvent

_INFO = "$JS.API.STREAM.INFO."
_BATCH = 256
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
            async for page in _subjects(self._bus, self._stream, subjects):
                yield [_last_token(subject) for subject in page]

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
        return [StoredEvent(each.sequence, each.data) for each in messages]

    async def last_sequence(self) -> int:
        return int((await self._bus.ask(_INFO + self._stream, {}))["state"]["last_seq"])


def log_contents(bus: Bus) -> JetStreamLogContents:
    return JetStreamLogContents(bus, JetStreamLog(bus), stream=JOBS, subjects="jobs.{}.*")


def delivery_contents(bus: Bus) -> JetStreamLogContents:
    log = JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject)
    return JetStreamLogContents(bus, log, stream=DELIVERIES, subjects="deliveries.{}.*")


class JetStreamJobEntries:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        async for page in _subjects(self._bus, QUEUE, "queue.>"):
            yield [_last_token(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        subject = queue_subject(job.submitted.endpoint, job.submitted.lane, job.id)
        return await self._bus.last(QUEUE, subject) is not None


class JetStreamCallbackEntries:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        async for page in _subjects(self._bus, CALLBACKS, "callbacks.>"):
            yield [_last_token(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        for subject in (due_subject(job.id), scheduled_subject(job.id)):
            if await self._bus.last(CALLBACKS, subject) is not None:
                return True
        return False


async def _subjects(bus: Bus, stream: str, pattern: str) -> AsyncGenerator[list[str]]:
    """Every subject that matches. The server tells 100,000 at a time, in their order."""
    seen = 0
    while True:
        answer = await bus.ask(_INFO + stream, {"subjects_filter": pattern, "offset": seen})
        if page := list(answer["state"].get("subjects") or ()):
            yield page
        seen += len(page)
        if not page or seen >= answer["total"]:
            return


def _last_token(subject: str) -> str:
    return subject.rpartition(".")[2]
