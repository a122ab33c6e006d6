"""The job queue and the callback queue on JetStream: one work-queue message for each entry."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

from events.bus.bus import SCHEDULE, SCHEDULE_TARGET, Bus
from events.bus.errors import SUBJECTS_TAKEN, NoAnswer, was_said
from events.bus.last_known import LastKnown
from events.bus.puller import Message
from events.bus.queue_entries import (
    STORE_TIMEOUT_S,
    JetStreamEntries,
    JetStreamEntry,
    entries_of,
    store_first,
)
from events.bus.streams import (
    CALLBACKS,
    QUEUE,
    ConsumerSpec,
    any_callback_subject,
    callback_key_in,
    callbacks_consumer,
    due_subject,
    endpoint_of_consumer,
    endpoint_subjects,
    is_older_consumer,
    job_id_in,
    overlapping_consumers,
    queue_consumer,
    queue_subject,
    scheduled_subject,
    scheduled_subjects,
)
from events.errors import LogUnavailable
from events.queue import QueuedJob, QueueEntry
from events.wire.callback_keys import PARTS, UNDIVIDED, job_id_of, single_parts

logger = logging.getLogger(__name__)

_NO_DEADLINE = "-"
"""An entry without content would look like an answer that there is none."""
_MOST_JOBS = 250
"""That one look-up asks for: it is told of 1024 subjects at most, and each has a few."""
_PAGE = 500
_DEPTH_PERIOD_S = 1.0
_DEPTH_TIMEOUT_S = 1.0


class JetStreamJobQueue:
    """See `events.queue.JobQueue`."""

    def __init__(self, bus: Bus, *, lease_s: float, known_s: float = 10.0) -> None:
        """`known_s`: how long a depth counts while the log does not answer."""
        self._bus = bus
        self._lease_s = lease_s
        self._known_s = known_s
        self._depths: dict[str, LastKnown[int]] = {}
        """By endpoint."""

    async def add(
        self, endpoint: str, lane: int, job_id: str, *, deadline: datetime | None = None
    ) -> None:
        await store_first(self._bus, queue_subject(endpoint, lane, job_id), _content(deadline))

    async def put_again(
        self, endpoint: str, lane: int, job_id: str, *, deadline: datetime | None = None
    ) -> None:
        subject, content = queue_subject(endpoint, lane, job_id), _content(deadline).encode()
        try:
            sequence = await self._bus.store(subject, content, timeout_s=STORE_TIMEOUT_S)
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
            known = LastKnown(count, period_s=_DEPTH_PERIOD_S, oldest_s=self._known_s)
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
    async def reader(self, endpoint: str, number: int) -> AsyncGenerator[JetStreamEntries]:
        spec = queue_consumer(endpoint, number, lease_s=self._lease_s)
        try:
            await self._ensure(spec)
        except LogUnavailable as error:
            if not was_said(error, SUBJECTS_TAKEN):
                raise
            await self._remove_older(endpoint)
            await self._ensure(spec)
        async with entries_of(self._bus, spec) as entries:
            yield entries

    async def _ensure(self, spec: ConsumerSpec) -> None:
        """One of an older version, with fewer subjects, is made anew: with others it would pass
        over what the queue holds of them already.
        """
        subjects = await self._bus.consumer_subjects(spec.stream, spec.name)
        if subjects is not None and subjects != frozenset(spec.subjects):
            await self._bus.delete_consumer(spec.stream, spec.name)
        await self._bus.ensure_consumer(spec)

    async def _remove_older(self, endpoint: str) -> None:
        """Entries stay; those that somebody holds are delivered again."""
        for consumer in await self._bus.consumers(QUEUE):
            if is_older_consumer(consumer, endpoint):
                await self._bus.delete_consumer(QUEUE, consumer)

    def entry(self, job_id: str, token: str) -> QueueEntry:
        return JetStreamEntry(job_id, token, self._bus)


class JetStreamCallbackQueue:
    """See `events.queue.CallbackQueue`. What is parked is a scheduled message (NATS ADR-51).

    It holds what its delivery stands in line for, or else the id of the job.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._has_told = False
        """That others read."""

    async def add(self, key: str) -> None:
        await store_first(self._bus, due_subject(key), job_id_of(key))

    async def park(self, key: str, until: datetime, *, line: str | None = None) -> None:
        at = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        headers = {SCHEDULE: f"@at {at}", SCHEDULE_TARGET: due_subject(key)}
        content = (line or job_id_of(key)).encode()
        try:
            await self._bus.store(
                scheduled_subject(key), content, timeout_s=STORE_TIMEOUT_S, headers=headers
            )
        except NoAnswer as error:
            raise LogUnavailable from error

    async def in_line(self, parts: Sequence[str] = PARTS) -> AsyncGenerator[dict[str, str]]:
        for part in single_parts(parts):
            after, subjects = 0, scheduled_subjects(part)
            while page := await self._bus.listing(CALLBACKS, subjects, after=after, count=_PAGE):
                held = {callback_key_in(each.subject): each.data.decode() for each in page}
                lines = {key: line for key, line in held.items() if line != job_id_of(key)}
                if lines:
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
    async def due(
        self, *, most_held: int, hold_s: float, part: str = UNDIVIDED
    ) -> AsyncGenerator[JetStreamEntries]:
        await self._remove_others(part)
        spec = callbacks_consumer(part, most_held=most_held, hold_s=hold_s)
        await self._bus.ensure_consumer(spec)
        async with entries_of(self._bus, spec, key_in=callback_key_in) as entries:
            yield entries

    async def _remove_others(self, part: str) -> None:
        """Those that have the same messages: of other numbers of processes.

        What is in hand somewhere is delivered again: a new consumer begins at the first message.
        Raises LogUnavailable while somebody reads from one of them.
        """
        if not (others := overlapping_consumers(part)):
            return
        requests = await self._bus.open_requests(CALLBACKS)
        if any(requests.get(name) for name in others):
            if not self._has_told:
                logger.warning(
                    "callbacks are still read by another number of processes",
                    extra={"action": "callbacks_wait", "part": part},
                )
            self._has_told = True
            raise LogUnavailable
        for name in others & requests.keys():
            await self._bus.delete_consumer(CALLBACKS, name)


def _content(deadline: datetime | None) -> str:
    return _NO_DEADLINE if deadline is None else deadline.isoformat()


def _queued_job(message: Message) -> QueuedJob:
    """Entries of older versions hold an id in the place of a deadline."""
    _, _, lane, job_id = message.subject.split(".")
    try:
        deadline = datetime.fromisoformat(message.data.decode())
    except ValueError:
        deadline = None
    return QueuedJob(job_id, int(lane), message.sequence, deadline)
