"""The queues in memory, which replace those on JetStream in tests of their users."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from events.ids import CONSUMERS, LANES
from events.log import utc_now
from events.queue import QueuedJob, QueueEntry

_DUE = "due"
"""The key of the only queue of callbacks."""


@dataclass(slots=True)
class _Message:
    """A message of a work queue; it is delivered again once `visible_at` has passed."""

    key: Hashable
    """The queue on which it is."""
    job_id: str
    hold_s: float
    visible_at: float = 0.0
    """The time of its next delivery by the monotonic clock."""
    stored_at: datetime = field(default_factory=utc_now)
    deadline: datetime | None = None


@dataclass(slots=True)
class _Messages:
    """The messages of one work queue, by sequence."""

    by_sequence: dict[int, _Message] = field(default_factory=dict)
    stored: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def store(self, message: _Message) -> None:
        self.stored += 1
        self.by_sequence[self.stored] = message
        self.changed.set()

    def remove(self, key: Hashable, job_id: str) -> None:
        self.by_sequence = {
            sequence: message
            for sequence, message in self.by_sequence.items()
            if (message.key, message.job_id) != (key, job_id)
        }

    def has(self, key: Hashable, job_id: str) -> bool:
        return any((each.key, each.job_id) == (key, job_id) for each in self.by_sequence.values())

    def held(self, queues: Collection[Hashable]) -> int:
        now, all_of_them = time.monotonic(), self.by_sequence.values()
        return sum(each.key in queues and each.visible_at > now for each in all_of_them)

    def take(
        self, queues: Collection[Hashable], *, most: int, hold_s: float
    ) -> Sequence[MemoryEntry]:
        now = time.monotonic()
        ready = [
            (sequence, message)
            for sequence, message in self.by_sequence.items()
            if message.key in queues and message.visible_at <= now
        ]
        for _, message in ready[:most]:
            message.hold_s = hold_s
            message.visible_at = now + hold_s
        return [
            MemoryEntry(message.job_id, str(sequence), self) for sequence, message in ready[:most]
        ]

    def seconds_to_next(self, queues: Collection[Hashable]) -> float | None:
        """Return the time until the next held message may be delivered again; None if there is
        none.
        """
        now = time.monotonic()
        waits = [
            each.visible_at - now
            for each in self.by_sequence.values()
            if each.key in queues and each.visible_at > now
        ]
        return min(waits, default=None)


@dataclass(frozen=True, slots=True)
class MemoryEntry:
    """Like an entry on JetStream, it still acts on its message after a later delivery."""

    job_id: str
    token: str
    _messages: _Messages

    @property
    def stored_at(self) -> datetime:
        message = self._messages.by_sequence.get(int(self.token))
        return utc_now() if message is None else message.stored_at

    async def ack(self) -> None:
        self._messages.by_sequence.pop(int(self.token), None)
        self._messages.changed.set()  # there is room for another entry

    async def nak(self) -> None:
        if message := self._messages.by_sequence.get(int(self.token)):
            message.visible_at = 0.0
            self._messages.changed.set()

    async def renew(self) -> None:
        if message := self._messages.by_sequence.get(int(self.token)):
            await self.hold(for_s=message.hold_s)

    async def hold(self, *, for_s: float) -> None:
        if message := self._messages.by_sequence.get(int(self.token)):
            message.visible_at = time.monotonic() + for_s
            self._messages.changed.set()  # the time may have become shorter


class MemoryEntries:
    """The entries that one reader receives."""

    def __init__(
        self,
        messages: _Messages,
        queues: Collection[Hashable],
        *,
        hold_s: float,
        most_held: int | None = None,
    ) -> None:
        self._messages = messages
        self._queues = queues
        self._hold_s = hold_s
        self._most_held = most_held

    async def next(self, *, most: int, timeout_s: float) -> Sequence[MemoryEntry]:
        give_up_at = time.monotonic() + timeout_s
        while True:
            room = self._room(most)
            if entries := self._messages.take(self._queues, most=room, hold_s=self._hold_s):
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
        if self._most_held is None:
            return most
        return max(0, min(most, self._most_held - self._messages.held(self._queues)))


class MemoryJobQueue:
    """Keeps the promises of `events.queue.JobQueue`, but only while the process lives."""

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
        keys = [each.key for each in self._messages.by_sequence.values()]
        return sum(isinstance(key, tuple) and key[0] == endpoint for key in keys)

    async def ahead(self, endpoint: str, lane: int, job_id: str) -> int | None:
        entries = await self.queued(endpoint, after=0, most=len(self._messages.by_sequence))
        names = [(entry.lane, entry.job_id) for entry in entries]
        return names.index((lane, job_id)) if (lane, job_id) in names else None

    async def job_ids(self) -> set[str]:
        return {message.job_id for message in self._messages.by_sequence.values()}

    async def queued(self, endpoint: str, *, after: int, most: int) -> list[QueuedJob]:
        found = [
            QueuedJob(each.job_id, each.key[1], position, each.deadline)
            for position, each in sorted(self._messages.by_sequence.items())
            if isinstance(each.key, tuple) and each.key[0] == endpoint and position > after
            if each.deadline is not None
        ]
        return found[:most]

    async def made_at(self) -> datetime:
        return self._made_at

    async def endpoints(self) -> set[str]:
        keys = [each.key for each in self._messages.by_sequence.values()]
        return self._read | {str(key[0]) for key in keys if isinstance(key, tuple)}

    async def forget(self, endpoint: str) -> None:
        self._read.discard(endpoint)

    @asynccontextmanager
    async def consume(self, endpoint: str, number: int) -> AsyncGenerator[MemoryEntries]:
        self._read.add(endpoint)
        lanes = {(endpoint, lane) for lane in range(number, LANES, CONSUMERS)}
        yield MemoryEntries(self._messages, lanes, hold_s=self._lease_s)

    def entry(self, job_id: str, token: str) -> QueueEntry:
        return MemoryEntry(job_id, token, self._messages)

    def held_until(self, job_id: str) -> float:
        """Return the time of the next delivery of the entry by the monotonic clock."""
        messages = self._messages.by_sequence.values()
        return next(each.visible_at for each in messages if each.job_id == job_id)


class MemoryCallbackQueue:
    """Keeps the promises of `events.queue.CallbackQueue`, but only while the process lives."""

    def __init__(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._messages = _Messages()
        self.parked: dict[str, datetime] = {}
        """When each parked delivery is due, by job."""
        self._lines: dict[str, str] = {}
        """The lines of the deliveries that are parked in one."""

    async def add(self, job_id: str) -> None:
        if not self._messages.has(_DUE, job_id):
            self._store(job_id)

    async def park(self, job_id: str, until: datetime, *, line: str | None = None) -> None:
        self._leave(job_id)
        self.parked[job_id] = until
        if line is not None:
            self._lines[job_id] = line
        asyncio.get_running_loop().call_later(
            max((until - self._clock()).total_seconds(), 0.0), self._release, job_id, until
        )

    async def in_line(self) -> AsyncGenerator[dict[str, str]]:
        if self._lines:
            yield dict(self._lines)

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        return await self.job_ids() & set(job_ids)

    async def job_ids(self) -> set[str]:
        return {each.job_id for each in self._messages.by_sequence.values()} | self.parked.keys()

    @asynccontextmanager
    async def due(self, *, most_held: int, hold_s: float) -> AsyncGenerator[MemoryEntries]:
        yield MemoryEntries(self._messages, [_DUE], hold_s=hold_s, most_held=most_held)

    def _release(self, job_id: str, until: datetime) -> None:
        """Make the delivery due, unless it was parked again."""
        if self.parked.get(job_id) == until:
            self._leave(job_id)
            self._store(job_id)

    def _leave(self, job_id: str) -> None:
        self.parked.pop(job_id, None)
        self._lines.pop(job_id, None)

    def _store(self, job_id: str) -> None:
        self._messages.store(_Message(_DUE, job_id, 0.0, stored_at=self._clock()))
