"""The job queue and the callback queue: each entry is a message in a work queue of JetStream.

A queue is a projection of the log and can be rebuilt at any time. It shows which jobs or deliveries
are left, but not what was done for them. A holder of an entry must therefore fold the job before it
acts.
"""

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
from settings.constant import constant

LEASE_S = constant("LEASE_S", 30.0)
"""The time in seconds for which a job's actor holds the entry without a renewal. Then the entry is
delivered again, and another actor may get the job.
"""
REQUEUE_PERIOD_S = constant("REQUEUE_PERIOD_S", 60.0)
"""Seconds between two repairs of a queue, which add missing entries."""
AT_ONCE = datetime(2000, 1, 1, tzinfo=UTC)
"""A time in the past by every clock. A delivery that is parked until `AT_ONCE` is due now."""
_STORE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """One job on a queue, delivered to a holder.

    An entry that is neither acknowledged nor renewed in time is delivered again. Then there are two
    holders, and each may acknowledge, return or renew the entry. Only the events decide who may
    write.
    """

    job_id: str
    ack_subject: str
    """The subject of acknowledgements. With it, another process can reopen this entry
    (`JobQueue.entry`).
    """
    _bus: Bus

    @property
    def stored_at(self) -> datetime:
        """The time at which the entry was put on the queue, by the clock of the queue's server.

        By this clock, the server decides when a parked entry becomes due. So an entry that was
        stored at or after its due time is due, even if the clock of the reader is behind.
        """
        return stored_at(self.ack_subject)

    async def ack(self) -> None:
        """Remove the entry from the queue. It may be delivered again if the server does not
        confirm.
        """
        await self._bus.ack(self.ack_subject)

    async def nak(self) -> None:
        """Return the entry to the queue, which delivers it again at once."""
        await self._bus.nak(self.ack_subject)

    async def renew(self) -> None:
        """Restart the ack wait. An entry is delivered again at the end of its ack wait."""
        await self._bus.renew(self.ack_subject)

    async def redeliver_in(self, seconds: float) -> None:
        """Have the entry delivered again after this time, instead of after its ack wait."""
        await self._bus.nak(self.ack_subject, after_s=seconds)


class EntryConsumer:
    """Delivers the entries of one durable consumer to one holder."""

    def __init__(self, bus: Bus, puller: Puller) -> None:
        self._bus = bus
        self._puller = puller

    async def next(self, *, most: int, timeout_s: float) -> Sequence[QueueEntry]:
        """Return the entries that have arrived, or wait for the next entries.

        The result is empty if no entry came in time. `most` is the number of entries in a request
        to the server. The result may have entries of two requests. Raises LogUnavailable.
        """
        messages = await self._puller.follow(batch=most, timeout_s=timeout_s)
        return [
            QueueEntry(job_id_in(each.subject), each.ack_subject, self._bus) for each in messages
        ]


@asynccontextmanager
async def _entries_of(bus: Bus, spec: ConsumerSpec) -> AsyncGenerator[EntryConsumer]:
    """Pull the entries of an existing consumer within the context.

    At its end, entries that have arrived and that `next` did not return go back to the queue.
    """
    async with bus.puller(spec.stream, spec.name) as puller:
        try:
            yield EntryConsumer(bus, puller)
        finally:
            await bus.return_messages(puller)


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


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits or runs, read from its entry without becoming a holder."""

    job_id: str
    lane: int
    position: int
    """The position on the queue. A later entry has a higher position."""
    deadline: datetime


class JobQueue:
    """Jobs that wait or run, by endpoint and lane."""

    def __init__(
        self, bus: Bus, *, lease_s: float = LEASE_S, max_staleness_s: float = 10.0
    ) -> None:
        """`max_staleness_s` is the largest age of the last known depth that `depth` returns."""
        self._bus = bus
        self._lease_s = lease_s
        self._max_staleness_s = max_staleness_s
        self._depths: dict[str, LastKnown[int]] = {}

    async def add(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        """Add an entry unless the job already has an entry. Raises LogUnavailable, LogFull."""
        await _store_first(self._bus, queue_subject(endpoint, lane, job_id), deadline.isoformat())

    async def put_again(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        """Replace the job's entry with a new entry, even if the old entry has a holder.

        The job has an entry at all times. Raises LogUnavailable, LogFull.
        """
        subject, content = queue_subject(endpoint, lane, job_id), deadline.isoformat().encode()
        try:
            sequence = await self._bus.store(subject, content, timeout_s=_STORE_TIMEOUT_S)
        except NoAnswer as error:
            raise LogUnavailable from error
        await self._bus.purge(QUEUE, subject, upto=sequence - 1)

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        """Remove the entry if it exists. Raises LogUnavailable."""
        await self._bus.purge(QUEUE, queue_subject(endpoint, lane, job_id))

    async def depth(self, endpoint: str) -> int:
        """Return the number of entries, for waiting and running jobs. It may be a second old.

        Raises LogUnavailable.
        """
        if (known := self._depths.get(endpoint)) is None:
            count = partial(
                self._bus.count, QUEUE, endpoint_subjects(endpoint), timeout_s=_DEPTH_TIMEOUT_S
            )
            known = LastKnown(count, period_s=_DEPTH_PERIOD_S, oldest_s=self._max_staleness_s)
            self._depths[endpoint] = known
        return await known.get()

    async def ahead(self, endpoint: str, lane: int, job_id: str) -> int | None:
        """Return the number of entries before that of this job, including running jobs.

        The result is None if the job has no entry. Raises LogUnavailable.
        """
        mine = await self._bus.last(QUEUE, queue_subject(endpoint, lane, job_id))
        if mine is None:
            return None
        subjects, timeout_s = endpoint_subjects(endpoint), _DEPTH_TIMEOUT_S
        every = await self._bus.count(QUEUE, subjects, timeout_s=timeout_s)
        before = mine.sequence - 1
        others = await self._bus.count(QUEUE, subjects, after=before, timeout_s=timeout_s)
        return max(every - others, 0)

    async def job_ids(self) -> set[str]:
        """Return the id of every job that has an entry. Raises LogUnavailable."""
        return set(map(job_id_in, await self._bus.pending(QUEUE, "queue.>")))

    async def job_id_pages(self) -> AsyncGenerator[list[str]]:
        """Yield the id of every job that has an entry, in pages. Raises LogUnavailable."""
        async for page in self._bus.pages(QUEUE, "queue.>"):
            yield [job_id_in(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        """Return whether the job has an entry. Raises LogUnavailable."""
        subject = queue_subject(job.submitted.endpoint, job.submitted.lane, job.id)
        return await self._bus.last(QUEUE, subject) is not None

    async def queued(self, endpoint: str, *, after: int, most: int) -> list[QueuedJob]:
        """Return the first `most` jobs of an endpoint after a position, waiting or running.

        The result has fewer jobs only if the endpoint has no more. Raises LogUnavailable.
        """
        subjects = endpoint_subjects(endpoint)
        messages = await self._bus.listing(QUEUE, subjects, after=after, count=most)
        return [_queued_job(message) for message in messages]

    async def made_at(self) -> datetime:
        """Return the time at which the queue was created.

        If the queue was lost and created again, this time is different and positions restart at 1.
        Raises LogUnavailable.
        """
        return await self._bus.made_at(QUEUE)

    async def endpoints(self) -> set[str]:
        """Return every endpoint that has entries or consumers. Raises LogUnavailable."""
        subjects = await self._bus.pending(QUEUE, "queue.>")
        consumers = await self._bus.consumers(QUEUE)
        return {subject.split(".")[1] for subject in subjects} | {
            endpoint for endpoint in map(endpoint_of_consumer, consumers) if endpoint is not None
        }

    async def forget(self, endpoint: str) -> None:
        """Remove the consumers of an endpoint, but not its entries. Raises LogUnavailable.

        An open `EntryConsumer` of the endpoint then raises LogUnavailable, and may be opened again.
        """
        consumers = await self._bus.consumers(QUEUE)
        for consumer in consumers:
            if endpoint_of_consumer(consumer) == endpoint:
                await self._bus.delete_consumer(QUEUE, consumer)

    @asynccontextmanager
    async def consume(self, endpoint: str, number: int) -> AsyncGenerator[EntryConsumer]:
        """Open consumer `number` of the endpoint, from 0 to `CONSUMERS` - 1.

        Raises LogUnavailable.
        """
        spec = queue_consumer(endpoint, number, lease_s=self._lease_s)
        await self._bus.ensure_consumer(spec)
        async with _entries_of(self._bus, spec) as entries:
            yield entries

    def entry(self, job_id: str, ack_subject: str) -> QueueEntry:
        """Return an entry that was delivered to another process."""
        return QueueEntry(job_id, ack_subject, self._bus)


class CallbackQueue:
    """The deliveries that are due now or later, at most one for each job.

    A parked delivery is a scheduled message (NATS ADR-51). The content of the message is the
    receiver for which the delivery waits, or else the id of the job.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def add(self, job_id: str) -> None:
        """Make a delivery due now, unless it is already due. Raises LogUnavailable, LogFull."""
        await _store_first(self._bus, due_subject(job_id), job_id)

    async def park(self, job_id: str, until: datetime, *, receiver: str | None = None) -> None:
        """Make a delivery due at `until`, instead of at the time of an earlier call.

        `receiver` is the receiver for which the delivery waits, or None; see
        `parked_by_receiver`. Raises LogUnavailable, LogFull.
        """
        at = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        headers = {SCHEDULE: f"@at {at}", SCHEDULE_TARGET: due_subject(job_id)}
        try:
            await self._bus.store(
                scheduled_subject(job_id),
                (receiver or job_id).encode(),
                timeout_s=_STORE_TIMEOUT_S,
                headers=headers,
            )
        except NoAnswer as error:
            raise LogUnavailable from error

    async def parked_by_receiver(self) -> AsyncGenerator[dict[str, str]]:
        """Yield the receiver of each delivery that was parked with one, by job id, in pages.

        The pages are in the order of parking. Raises LogUnavailable.
        """
        after = 0
        while page := await self._bus.listing(
            CALLBACKS, SCHEDULED_CALLBACKS, after=after, count=_PAGE
        ):
            parked = {job_id_in(each.subject): each.data.decode() for each in page}
            if receivers := {id: receiver for id, receiver in parked.items() if receiver != id}:
                yield receivers
            after = page[-1].sequence

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        """Return those of `job_ids` whose delivery has an entry, due or scheduled (parked).

        Raises LogUnavailable.
        """
        subjects = list(map(any_callback_subject, job_ids))
        found: set[str] = set()
        for begin in range(0, len(subjects), _MOST_JOBS):
            some = subjects[begin : begin + _MOST_JOBS]
            found |= set(map(job_id_in, await self._bus.present(CALLBACKS, some)))
        return found

    async def job_ids(self) -> set[str]:
        """Return the id of every job whose delivery is due or parked. Raises LogUnavailable."""
        return set(map(job_id_in, await self._bus.pending(CALLBACKS, "callbacks.>")))

    async def job_id_pages(self) -> AsyncGenerator[list[str]]:
        """Yield the id of every job whose delivery is due or parked, in pages.

        Raises LogUnavailable.
        """
        async for page in self._bus.pages(CALLBACKS, "callbacks.>"):
            yield [job_id_in(subject) for subject in page]

    async def has(self, job: Job) -> bool:
        """Return whether the delivery of the job is due or parked. Raises LogUnavailable."""
        return await self._bus.last(CALLBACKS, any_callback_subject(job.id)) is not None

    @asynccontextmanager
    async def due(
        self, *, max_unacknowledged: int, ack_wait_s: float
    ) -> AsyncGenerator[EntryConsumer]:
        """Open a consumer of the due entries.

        `max_unacknowledged` is the largest number of entries that all holders together have at the
        same time. An entry that is not renewed for `ack_wait_s` seconds is delivered again. Raises
        LogUnavailable.
        """
        spec = callbacks_consumer(max_unacknowledged=max_unacknowledged, ack_wait_s=ack_wait_s)
        await self._bus.ensure_consumer(spec)
        async with _entries_of(self._bus, spec) as entries:
            yield entries


def _queued_job(message: Message) -> QueuedJob:
    _, _, lane, job_id = message.subject.split(".")
    deadline = datetime.fromisoformat(message.data.decode())
    return QueuedJob(job_id, int(lane), message.sequence, deadline)
