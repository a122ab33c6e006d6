"""The queues in memory: the twins of those on JetStream, for tests of what stands on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from events.ids import LANES, READERS
from events.log import utc_now
from events.queue import QueuedJob, QueueEntry
from events.wire.callback_keys import PARTS, job_id_of, part_of, single_parts


@dataclass(slots=True)
class _Message:
    """A message of a work queue; it is delivered again once `visible_at` has passed."""

    key: Hashable
    """Of the queue that it is on."""
    job_id: str
    """Or, on the callback queue, the key of the delivery."""
    hold_s: float
    visible_at: float = 0.0
    """By the monotonic clock."""
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
            MemoryEntry(job_id_of(message.job_id), str(sequence), self, message.job_id)
            for sequence, message in ready[:most]
        ]

    def seconds_to_next(self, queues: Collection[Hashable]) -> float | None:
        """Until the next message that is held now may be delivered again; None where none is."""
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
    key: str

    @property
    def stored_at(self) -> datetime:
        message = self._messages.by_sequence.get(int(self.token))
        return utc_now() if message is None else message.stored_at

    async def ack(self) -> None:
        self._messages.by_sequence.pop(int(self.token), None)
        self._messages.changed.set()  # there is room for another one

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
            self._messages.changed.set()  # perhaps sooner than whoever waits for it thinks


class MemoryEntries:
    """What one reader is delivered."""

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
        """Endpoints whose lanes were read."""
        self._made_at = utc_now()

    async def add(
        self, endpoint: str, lane: int, job_id: str, *, deadline: datetime | None = None
    ) -> None:
        if not self._messages.has((endpoint, lane), job_id):
            message = _Message((endpoint, lane), job_id, self._lease_s, deadline=deadline)
            self._messages.store(message)

    async def put_again(
        self, endpoint: str, lane: int, job_id: str, *, deadline: datetime | None = None
    ) -> None:
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
    async def reader(self, endpoint: str, number: int) -> AsyncGenerator[MemoryEntries]:
        self._read.add(endpoint)
        lanes = {(endpoint, lane) for lane in range(number, LANES, READERS)}
        yield MemoryEntries(self._messages, lanes, hold_s=self._lease_s)

    def entry(self, job_id: str, token: str) -> QueueEntry:
        return MemoryEntry(job_id, token, self._messages, job_id)


class MemoryCallbackQueue:
    """Keeps the promises of `events.queue.CallbackQueue`, but only while the process lives."""

    def __init__(self, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock = clock
        self._messages = _Messages()
        self.parked: dict[str, datetime] = {}
        """By key: when each parked delivery is due."""
        self._lines: dict[str, str] = {}
        """Of those that are parked in one."""

    async def add(self, key: str) -> None:
        if not self._messages.has(part_of(key), key):
            self._store(key)

    async def park(self, key: str, until: datetime, *, line: str | None = None) -> None:
        self._leave(key)
        self.parked[key] = until
        if line is not None:
            self._lines[key] = line
        asyncio.get_running_loop().call_later(
            max((until - self._clock()).total_seconds(), 0.0), self._release, key, until
        )

    async def in_line(self, parts: Sequence[str] = PARTS) -> AsyncGenerator[dict[str, str]]:
        mine = single_parts(parts)
        if lines := {key: line for key, line in self._lines.items() if part_of(key) in mine}:
            yield lines

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        return await self.job_ids() & set(job_ids)

    async def job_ids(self) -> set[str]:
        keys = {each.job_id for each in self._messages.by_sequence.values()} | self.parked.keys()
        return set(map(job_id_of, keys))

    @asynccontextmanager
    async def due(
        self, *, most_held: int, hold_s: float, part: str | None = None
    ) -> AsyncGenerator[MemoryEntries]:
        """Of all parts, where none is said."""
        parts = PARTS if part is None else single_parts([part])
        yield MemoryEntries(self._messages, parts, hold_s=hold_s, most_held=most_held)

    def _release(self, key: str, until: datetime) -> None:
        """Make it due, unless it was parked anew meanwhile."""
        if self.parked.get(key) == until:
            self._leave(key)
            self._store(key)

    def _leave(self, key: str) -> None:
        self.parked.pop(key, None)
        self._lines.pop(key, None)

    def _store(self, key: str) -> None:
        self._messages.store(_Message(part_of(key), key, 0.0, stored_at=self._clock()))
