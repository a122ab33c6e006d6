"""The queues in memory, which replace those on JetStream in tests of their users."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

from events.bus.bus import Bus
from events.bus.queues import CallbackQueue, EntryConsumer, JobQueue, QueuedJob, QueueEntry
from events.ids import CONSUMERS, LANES
from events.job import Job
from events.log import utc_now

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DUE = "due"
"""The key of the only queue of callbacks."""


@dataclass(slots=True)
class _Message:
    """A message of a work queue; it is delivered again once `visible_at` has passed."""

    key: Hashable
    """The queue on which it is."""
    job_id: str
    ack_wait_s: float
    visible_at: float = 0.0
    """The time of its next delivery by the monotonic clock."""
    stored_at: datetime = field(default_factory=utc_now)
    deadline: datetime | None = None
    position: int = 0


@dataclass(slots=True)
class _Messages:
    """The messages of one work queue, by their ack subjects, and the operations of `Bus` on them.

    Like an entry on JetStream, an entry still acts on its message after a later delivery.
    """

    by_ack_subject: dict[str, _Message] = field(default_factory=dict)
    stored: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def store(self, message: _Message) -> None:
        self.stored += 1
        message.position = self.stored
        nanoseconds = (message.stored_at - _EPOCH) // timedelta(microseconds=1) * 1000
        subject = f"$JS.ACK.memory.memory.1.{self.stored}.1.{nanoseconds}.0"
        self.by_ack_subject[subject] = message
        self.changed.set()

    def entry(self, job_id: str, ack_subject: str) -> QueueEntry:
        return QueueEntry(job_id, ack_subject, cast(Bus, self))

    async def ack(self, ack_subject: str) -> None:
        self.by_ack_subject.pop(ack_subject, None)
        self.changed.set()  # there is room for another entry

    async def nak(self, ack_subject: str, *, after_s: float = 0.0) -> None:
        if message := self.by_ack_subject.get(ack_subject):
            message.visible_at = time.monotonic() + after_s
            self.changed.set()  # the time may have become shorter

    async def renew(self, ack_subject: str) -> None:
        if message := self.by_ack_subject.get(ack_subject):
            await self.nak(ack_subject, after_s=message.ack_wait_s)

    def remove(self, key: Hashable, job_id: str) -> None:
        self.by_ack_subject = {
            subject: message
            for subject, message in self.by_ack_subject.items()
            if (message.key, message.job_id) != (key, job_id)
        }

    def has(self, key: Hashable, job_id: str) -> bool:
        return any((each.key, each.job_id) == (key, job_id) for each in self.messages)

    @property
    def messages(self) -> Collection[_Message]:
        return self.by_ack_subject.values()

    def held(self, queues: Collection[Hashable]) -> int:
        now = time.monotonic()
        return sum(each.key in queues and each.visible_at > now for each in self.messages)

    def take(
        self, queues: Collection[Hashable], *, most: int, ack_wait_s: float
    ) -> Sequence[QueueEntry]:
        now = time.monotonic()
        ready = [
            (subject, message)
            for subject, message in self.by_ack_subject.items()
            if message.key in queues and message.visible_at <= now
        ]
        for _, message in ready[:most]:
            message.ack_wait_s = ack_wait_s
            message.visible_at = now + ack_wait_s
        return [self.entry(message.job_id, subject) for subject, message in ready[:most]]

    def seconds_to_next(self, queues: Collection[Hashable]) -> float | None:
        """Return the time until the next held message may be delivered again; None if there is
        none.
        """
        now = time.monotonic()
        waits = [
            each.visible_at - now
            for each in self.messages
            if each.key in queues and each.visible_at > now
        ]
        return min(waits, default=None)


class MemoryEntries(EntryConsumer):
    """The entries that one reader receives."""

    def __init__(
        self,
        messages: _Messages,
        queues: Collection[Hashable],
        *,
        ack_wait_s: float,
        max_unacknowledged: int | None = None,
    ) -> None:
        self._messages = messages
        self._queues = queues
        self._ack_wait_s = ack_wait_s
        self._max_unacknowledged = max_unacknowledged

    async def next(self, *, most: int, timeout_s: float) -> Sequence[QueueEntry]:
        give_up_at = time.monotonic() + timeout_s
        while True:
            room = self._room(most)
            if entries := self._messages.take(self._queues, most=room, ack_wait_s=self._ack_wait_s):
                return entries
            left_s = give_up_at - time.monotonic()
            if left_s <= 0:
                return []
            self._messages.changed.clear()
            ready_in_s = self._messages.seconds_to_next(self._queues)
            wait_s = left_s if ready_in_s is None else min(left_s, ready_in_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._messages.changed.wait()

    def _room(self, most: int) -> int:
        if self._max_unacknowledged is None:
            return most
        return max(0, min(most, self._max_unacknowledged - self._messages.held(self._queues)))


class MemoryJobQueue(JobQueue):
    """Keeps the promises of `JobQueue`, but only while the process lives."""

    def __init__(self, *, lease_s: float = 30.0) -> None:
        self._lease_s = lease_s
        self._messages = _Messages()
        self._read: set[str] = set()
        """Endpoints whose lanes are read."""
        self._made_at = utc_now()

    async def add(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        if not self._messages.has((endpoint, lane), job_id):
            message = _Message((endpoint, lane), job_id, self._lease_s, deadline=deadline)
            self._messages.store(message)

    async def put_again(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        await self.remove(endpoint, lane, job_id)
        await self.add(endpoint, lane, job_id, deadline=deadline)

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        self._messages.remove((endpoint, lane), job_id)

    async def depth(self, endpoint: str) -> int:
        keys = [each.key for each in self._messages.messages]
        return sum(isinstance(key, tuple) and key[0] == endpoint for key in keys)

    async def ahead(self, endpoint: str, lane: int, job_id: str) -> int | None:
        entries = await self.queued(endpoint, after=0, most=len(self._messages.messages))
        names = [(entry.lane, entry.job_id) for entry in entries]
        return names.index((lane, job_id)) if (lane, job_id) in names else None

    async def job_ids(self) -> set[str]:
        return {message.job_id for message in self._messages.messages}

    async def job_id_pages(self) -> AsyncGenerator[list[str]]:
        yield sorted(await self.job_ids())

    async def has(self, job: Job) -> bool:
        return job.id in await self.job_ids()

    async def queued(self, endpoint: str, *, after: int, most: int) -> list[QueuedJob]:
        found = [
            QueuedJob(each.job_id, each.key[1], each.position, each.deadline)
            for each in self._messages.messages
            if isinstance(each.key, tuple) and each.key[0] == endpoint and each.position > after
            if each.deadline is not None
        ]
        return found[:most]

    async def made_at(self) -> datetime:
        return self._made_at

    async def endpoints(self) -> set[str]:
        keys = [each.key for each in self._messages.messages]
        return self._read | {str(key[0]) for key in keys if isinstance(key, tuple)}

    async def forget(self, endpoint: str) -> None:
        self._read.discard(endpoint)

    @asynccontextmanager
    async def consume(self, endpoint: str, number: int) -> AsyncGenerator[MemoryEntries]:
        self._read.add(endpoint)
        lanes = {(endpoint, lane) for lane in range(number, LANES, CONSUMERS)}
        yield MemoryEntries(self._messages, lanes, ack_wait_s=self._lease_s)

    def entry(self, job_id: str, ack_subject: str) -> QueueEntry:
        return self._messages.entry(job_id, ack_subject)

    def held_until(self, job_id: str) -> float:
        """Return the time of the next delivery of the entry by the monotonic clock."""
        messages = self._messages.messages
        return next(each.visible_at for each in messages if each.job_id == job_id)


class MemoryCallbackQueue(CallbackQueue):
    """Keeps the promises of `CallbackQueue`, but only while the process lives."""

    def __init__(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._messages = _Messages()
        self.parked: dict[str, datetime] = {}
        """When each parked delivery is due, by job."""
        self._receivers: dict[str, str] = {}
        """The receivers of the deliveries that are parked for one, by job."""

    async def add(self, job_id: str) -> None:
        if not self._messages.has(_DUE, job_id):
            self._store(job_id)

    async def park(self, job_id: str, until: datetime, *, receiver: str | None = None) -> None:
        self._leave(job_id)
        self.parked[job_id] = until
        if receiver is not None:
            self._receivers[job_id] = receiver
        asyncio.get_running_loop().call_later(
            max((until - self._clock()).total_seconds(), 0.0), self._release, job_id, until
        )

    async def parked_by_receiver(self) -> AsyncGenerator[dict[str, str]]:
        if self._receivers:
            yield dict(self._receivers)

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        return await self.job_ids() & set(job_ids)

    async def job_ids(self) -> set[str]:
        return {each.job_id for each in self._messages.messages} | self.parked.keys()

    async def job_id_pages(self) -> AsyncGenerator[list[str]]:
        yield sorted(await self.job_ids())

    async def has(self, job: Job) -> bool:
        return job.id in await self.job_ids()

    @asynccontextmanager
    async def due(
        self, *, max_unacknowledged: int, ack_wait_s: float
    ) -> AsyncGenerator[MemoryEntries]:
        yield MemoryEntries(
            self._messages, [_DUE], ack_wait_s=ack_wait_s, max_unacknowledged=max_unacknowledged
        )

    def _release(self, job_id: str, until: datetime) -> None:
        """Make the delivery due, unless it was parked again."""
        if self.parked.get(job_id) == until:
            self._leave(job_id)
            self._store(job_id)

    def _leave(self, job_id: str) -> None:
        self.parked.pop(job_id, None)
        self._receivers.pop(job_id, None)

    def _store(self, job_id: str) -> None:
        self._messages.store(_Message(_DUE, job_id, 0.0, stored_at=self._clock()))
