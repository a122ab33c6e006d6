"""The job queue and the callback queue: each entry is a message in a work queue of JetStream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from events.bus.bus import SCHEDULE, SCHEDULE_TARGET, Bus
from events.bus.health import LastKnown
from events.bus.nats_errors import NoAnswer
from events.bus.puller import Message, Puller, stored_at
from events.bus.streams import (
    CALLBACKS,
    QUEUE,
    SCHEDULED_CALLBACKS,
    ConsumerSpec,
    any_callback_subject,
    callbacks_consumer,
    due_subject,
    endpoint_of_consumer,
    endpoint_subjects,
    job_id_in,
    queue_consumer,
    queue_subject,
    scheduled_subject,
)
from events.errors import LogUnavailable
from events.job import Job
from events.queue import LEASE_S, QueuedJob, QueueEntry

_STORE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class JetStreamEntry:
    """A message of a work queue. Its token is the subject of its acknowledgement."""

    job_id: str
    token: str
    _bus: Bus

    @property
    def stored_at(self) -> datetime:
        return stored_at(self.token)

    async def ack(self) -> None:
        await self._bus.ack(self.token)

    async def nak(self) -> None:
        await self._bus.nak(self.token)

    async def renew(self) -> None:
        await self._bus.renew(self.token)

    async def hold(self, *, for_s: float) -> None:
        await self._bus.nak(self.token, after_s=for_s)


class JetStreamEntries:
    """The entries that one durable consumer delivers."""

    def __init__(self, bus: Bus, puller: Puller) -> None:
        self._bus = bus
        self._puller = puller

    async def next(self, *, most: int, timeout_s: float) -> Sequence[JetStreamEntry]:
        messages = await self._puller.follow(batch=most, timeout_s=timeout_s)
        return [
            JetStreamEntry(job_id_in(each.subject), each.ack_subject, self._bus)
            for each in messages
        ]


@asynccontextmanager
async def _entries_of(bus: Bus, spec: ConsumerSpec) -> AsyncGenerator[JetStreamEntries]:
    """Pull the entries of an existing consumer within the context.

    At its end, entries that have arrived and that `next` did not return go back to the queue.
    """
    async with bus.puller(spec.stream, spec.name) as puller:
        try:
            yield JetStreamEntries(bus, puller)
        finally:
            await bus.give_back(puller)


async def _store_first(bus: Bus, subject: str, text: str) -> None:
    try:
        await bus.store_first(subject, text.encode(), timeout_s=_STORE_TIMEOUT_S)
    except NoAnswer as error:
        raise LogUnavailable from error


_MOST_JOBS = 250
"""The largest number of jobs in one look-up, which returns at most 1024 subjects."""
_PAGE = 500
_DEPTH_PERIOD_S = 1.0
_DEPTH_TIMEOUT_S = 1.0


class JetStreamJobQueue:
    """See `events.queue.JobQueue`."""

    def __init__(
        self, bus: Bus, *, lease_s: float = LEASE_S, max_staleness_s: float = 10.0
    ) -> None:
        """`max_staleness_s` is the largest age of the last known depth that `depth` returns."""
        self._bus = bus
        self._lease_s = lease_s
        self._max_staleness_s = max_staleness_s
        self._depths: dict[str, LastKnown[int]] = {}

    async def add(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        await _store_first(self._bus, queue_subject(endpoint, lane, job_id), deadline.isoformat())

    async def put_again(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        subject, content = queue_subject(endpoint, lane, job_id), deadline.isoformat().encode()
        try:
            sequence = await self._bus.store(subject, content, timeout_s=_STORE_TIMEOUT_S)
        except NoAnswer as error:
            raise LogUnavailable from error
        await self._bus.purge(QUEUE, subject, upto=sequence - 1)

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        await self._bus.purge(QUEUE, queue_subject(endpoint, lane, job_id))

    async def depth(self, endpoint: str) -> int:
        if (known := self._depths.get(endpoint)) is None:
            count = partial(
                self._bus.count, QUEUE, endpoint_subjects(endpoint), timeout_s=_DEPTH_TIMEOUT_S
            )
            known = LastKnown(count, period_s=_DEPTH_PERIOD_S, oldest_s=self._max_staleness_s)
            self._depths[endpoint] = known
        return await known.get()

    async def ahead(self, endpoint: str, lane: int, job_id: str) -> int | None:
        mine = await self._bus.last(QUEUE, queue_subject(endpoint, lane, job_id))
        if mine is None:
            return None
        subjects, timeout_s = endpoint_subjects(endpoint), _DEPTH_TIMEOUT_S
        every = await self._bus.count(QUEUE, subjects, timeout_s=timeout_s)
        before = mine.sequence - 1
        others = await self._bus.count(QUEUE, subjects, after=before, timeout_s=timeout_s)
        return max(every - others, 0)

    async def job_ids(self) -> set[str]:
        return set(map(job_id_in, await self._bus.pending(QUEUE, "queue.>")))

    async def queued(self, endpoint: str, *, after: int, most: int) -> list[QueuedJob]:
        subjects = endpoint_subjects(endpoint)
        messages = await self._bus.listing(QUEUE, subjects, after=after, count=most)
        return [_queued_job(message) for message in messages]

    async def made_at(self) -> datetime:
        return await self._bus.made_at(QUEUE)

    async def endpoints(self) -> set[str]:
        subjects = await self._bus.pending(QUEUE, "queue.>")
        consumers = await self._bus.consumers(QUEUE)
        return {subject.split(".")[1] for subject in subjects} | {
            endpoint for endpoint in map(endpoint_of_consumer, consumers) if endpoint is not None
        }

    async def forget(self, endpoint: str) -> None:
        consumers = await self._bus.consumers(QUEUE)
        for consumer in consumers:
            if endpoint_of_consumer(consumer) == endpoint:
                await self._bus.delete_consumer(QUEUE, consumer)

    @asynccontextmanager
    async def consume(self, endpoint: str, number: int) -> AsyncGenerator[JetStreamEntries]:
        spec = queue_consumer(endpoint, number, lease_s=self._lease_s)
        await self._bus.ensure_consumer(spec)
        async with _entries_of(self._bus, spec) as entries:
            yield entries

    def entry(self, job_id: str, token: str) -> QueueEntry:
        return JetStreamEntry(job_id, token, self._bus)


class JetStreamCallbackQueue:
    """See `events.queue.CallbackQueue`. A parked delivery is a scheduled message (NATS ADR-51).

    The content of the message is the `line` of the delivery, or else the id of the job.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def add(self, job_id: str) -> None:
        await _store_first(self._bus, due_subject(job_id), job_id)

    async def park(self, job_id: str, until: datetime, *, line: str | None = None) -> None:
        at = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        headers = {SCHEDULE: f"@at {at}", SCHEDULE_TARGET: due_subject(job_id)}
        try:
            await self._bus.store(
                scheduled_subject(job_id),
                (line or job_id).encode(),
                timeout_s=_STORE_TIMEOUT_S,
                headers=headers,
            )
        except NoAnswer as error:
            raise LogUnavailable from error

    async def in_line(self) -> AsyncGenerator[dict[str, str]]:
        after = 0
        while page := await self._bus.listing(
            CALLBACKS, SCHEDULED_CALLBACKS, after=after, count=_PAGE
        ):
            held = {job_id_in(each.subject): each.data.decode() for each in page}
            if lines := {job_id: line for job_id, line in held.items() if line != job_id}:
                yield lines
            after = page[-1].sequence

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        subjects = list(map(any_callback_subject, job_ids))
        found: set[str] = set()
        for begin in range(0, len(subjects), _MOST_JOBS):
            some = subjects[begin : begin + _MOST_JOBS]
            found |= set(map(job_id_in, await self._bus.present(CALLBACKS, some)))
        return found

    async def job_ids(self) -> set[str]:
        return set(map(job_id_in, await self._bus.pending(CALLBACKS, "callbacks.>")))

    @asynccontextmanager
    async def due(self, *, most_held: int, hold_s: float) -> AsyncGenerator[JetStreamEntries]:
        spec = callbacks_consumer(most_held=most_held, hold_s=hold_s)
        await self._bus.ensure_consumer(spec)
        async with _entries_of(self._bus, spec) as entries:
            yield entries


def _queued_job(message: Message) -> QueuedJob:
    _, _, lane, job_id = message.subject.split(".")
    deadline = datetime.fromisoformat(message.data.decode())
    return QueuedJob(job_id, int(lane), message.sequence, deadline)


class JetStreamJobQueueContents:
    """See `events.queue.QueueContents`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        async for page in self._bus.pages(QUEUE, "queue.>"):
            yield [job_id_in(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        subject = queue_subject(job.submitted.endpoint, job.submitted.lane, job.id)
        return await self._bus.last(QUEUE, subject) is not None


class JetStreamCallbackQueueContents:
    """See `events.queue.QueueContents`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        async for page in self._bus.pages(CALLBACKS, "callbacks.>"):
            yield [job_id_in(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        return await self._bus.last(CALLBACKS, any_callback_subject(job.id)) is not None
