"""InHand: the jobs of an endpoint that wait, with their entries, which are held until their turn.

Turns are among all that wait, so each entry is taken off its lane as it comes, up to a bound. It is
held for some seconds at a time: if this dispatcher dies, it comes again about when the next one
takes over. Nothing is stored of it, so nothing is to be put right.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from actors.job_error import end_job
from actors.waiting.classes import WaitingJobs, waiting_of
from actors.waiting.turns import Waiting
from events.decisions import Expire
from events.errors import LogUnavailable, ReadTimeout
from events.ids import READERS
from events.job import Job
from events.log import JobWriter, utc_now
from events.queue import JobQueue, QueueEntry
from events.retry import keep_trying

_PULL_TIMEOUT_S = 30.0
_BATCH = 64
"""How many entries a reader of lanes is brought at most, before it asks for more."""
_READS_AT_ONCE = 64
_MOST_KEPT_BYTES = 32 * 1024
"""Of the events of a job that is kept for some seconds, so that it need not be read again: a
backlog is read at once where a dispatcher begins, and requests may be large.
"""
_LOOKS = 64
"""How many of those that wait longest without a look are looked at in each period."""
PASSING = (LogUnavailable, ReadTimeout)
"""Errors that say nothing about a job: its entry comes again."""


@dataclass(slots=True, eq=False)
class Held:
    """An entry in hand: nobody's job yet."""

    entry: QueueEntry
    waiting: Waiting
    reader: int
    """Of the lanes, that brought it."""
    attempts: int
    """How many the job had when its entry came."""
    job: Job | None
    """As it was then; None once that is some seconds ago, and if it is large."""
    read_at: float
    taken_at: float = 0.0

    @property
    def job_id(self) -> str:
        return self.waiting.job_id


class InHand:
    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        waiting: WaitingJobs,
        is_running: Callable[[Job, QueueEntry], Awaitable[bool]],
        on_new: Callable[[], None],
        most: int,
        hold_s: float,
    ) -> None:
        """`waiting` follows what is in hand. `is_running`: whether a job whose entry came runs on a
        worker that goes on with it. `on_new` is called for each job that begins to wait. `most`:
        in hand, beside one of each reader of lanes. `hold_s`: how long an entry is held at a time.
        """
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._waiting = waiting
        self._is_running = is_running
        self._on_new = on_new
        self._most = most
        self._hold_s = hold_s
        self._period_s = hold_s / 3
        self._held: dict[str, Held] = {}
        """By job, in the order in which they came."""
        self._of_reader: Counter[int] = Counter()
        self._coming: dict[str, QueueEntry] = {}
        """Entries that were taken off the queue and not looked at yet, by token."""
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._held

    @property
    def takes_all(self) -> bool:
        """Whether there is room for whatever comes."""
        return len(self._held) < self._most

    async def run(self) -> None:
        """Until cancelled; then what is in hand is given back."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep())
                group.create_task(self._look_again())
                for reader in range(READERS):
                    group.create_task(self._pull(group, reader))
        finally:
            for entry in [*(held.entry for held in self._held.values()), *self._coming.values()]:
                await entry.nak()

    def take(self, job_id: str) -> Held:
        """It is given a slot: from here on nobody but its taker holds its entry."""
        held = self._held[job_id]
        self._remove(held)
        held.taken_at = time.monotonic()
        return held

    async def ready(self, held: Held) -> Job | None:
        """The job that was taken, its entry held for a full time; None if it waits no more.

        Raises what is wrong with the job.
        """
        try:
            await held.entry.renew()
            return held.job or await self._look(held)
        except asyncio.CancelledError:
            await held.entry.nak()
            raise

    # What comes.

    async def _pull(self, group: asyncio.TaskGroup, reader: int) -> None:
        await keep_trying(lambda: self._pull_from(group, reader), on=PASSING)

    async def _pull_from(self, group: asyncio.TaskGroup, reader: int) -> None:
        async with self._queue.reader(self._endpoint, reader) as entries:
            while True:
                if self._is_full(reader):
                    await asyncio.sleep(self._period_s)
                # Some in any case: one of them may be that of a job which hangs in a slot.
                some = await entries.next(most=_BATCH, timeout_s=_PULL_TIMEOUT_S)
                await self._take_in(group, some, reader)

    def _is_full(self, reader: int) -> bool:
        return len(self._held) >= self._most and self._of_reader[reader] > 0

    async def _take_in(
        self, group: asyncio.TaskGroup, entries: Sequence[QueueEntry], reader: int
    ) -> None:
        """Returns once they are read: they are looked at in their order, but none waits for an
        actor that another one may run on.
        """
        self._coming |= {entry.token: entry for entry in entries}
        found = await asyncio.gather(*map(self._load, entries), return_exceptions=True)
        for entry, job in zip(entries, found, strict=True):
            group.create_task(self._take_one(entry, job, reader))

    async def _load(self, entry: QueueEntry) -> Job | None:
        async with self._reads:
            return await self._writer.load(entry.job_id)

    async def _take_one(
        self, entry: QueueEntry, found: Job | BaseException | None, reader: int
    ) -> None:
        with suppress(*PASSING):
            try:
                if isinstance(found, BaseException):
                    raise found
                await self._receive(entry, found, reader)
            except PASSING:
                raise
            except Exception as error:  # noqa: BLE001 - `drop_entry` logs it
                await drop_entry(entry, error, writer=self._writer)
        self._coming.pop(entry.token, None)

    async def _receive(self, entry: QueueEntry, job: Job | None, reader: int) -> None:
        """The entry of one in hand comes again where nobody could say that it is held."""
        if job is None or job.end is not None:
            self._let_go(self._held.get(entry.job_id))
            await entry.ack()
        elif await self._is_running(job, entry):
            self._let_go(self._held.get(entry.job_id))
        elif (held := self._held.get(job.id)) is not None:
            held.entry, held.attempts, held.job = entry, job.attempts, None
        elif self._is_full(reader):
            await entry.hold(for_s=self._hold_s)
        else:
            self._hold(entry, job, reader)

    def _hold(self, entry: QueueEntry, job: Job, reader: int) -> None:
        waiting, now = waiting_of(job), time.monotonic()
        kept = job if job.log_bytes <= _MOST_KEPT_BYTES else None
        self._held[job.id] = Held(entry, waiting, reader, job.attempts, kept, now)
        self._of_reader[reader] += 1
        self._waiting.put(waiting, first=job.attempts > 0)
        self._on_new()

    # What waits.

    async def _keep(self) -> None:
        """Hold what is in hand."""
        while True:
            await asyncio.sleep(self._period_s)
            for number, held in enumerate(list(self._held.values())):
                if self._held.get(held.job_id) is held:
                    held.job = None
                    await held.entry.hold(for_s=self._hold_s)
                if number % _BATCH == 0:
                    await asyncio.sleep(0)

    async def _look_again(self) -> None:
        """A job that ends while it waits, or that somebody else has started, waits no more."""
        while True:
            await asyncio.sleep(self._period_s)
            held = self._held.values()
            longest = heapq.nsmallest(_LOOKS, held, key=lambda each: each.read_at)
            await asyncio.gather(*map(self._look_at, longest))

    async def _look_at(self, held: Held) -> None:
        with suppress(*PASSING):
            try:
                if await self._look(held) is None:
                    self._let_go(held)
            except PASSING:
                raise
            except Exception as error:  # noqa: BLE001 - `drop_entry` logs it
                self._let_go(held)
                await drop_entry(held.entry, error, writer=self._writer)

    async def _look(self, held: Held) -> Job | None:
        """The job if it still waits. One that somebody else has started is theirs: the entry comes
        again once they are gone.
        """
        held.read_at = time.monotonic()
        job = await self._load(held.entry)
        if job is not None and job.cancel_requested and job.attempts == held.attempts:
            # Its actor went without a word, and nobody else is there to say that it is cancelled.
            job = (await self._writer.execute(Expire(utc_now()), job)).job or job
        if job is None or job.end is not None:
            await held.entry.ack()
            return None
        return job if job.attempts == held.attempts else None

    def _let_go(self, held: Held | None) -> None:
        """Unless it was taken meanwhile."""
        if held is not None and self._held.get(held.job_id) is held:
            self._remove(held)
            self._waiting.remove(held.waiting)

    def _remove(self, held: Held) -> None:
        del self._held[held.job_id]
        self._of_reader[held.reader] -= 1


async def drop_entry(entry: QueueEntry, error: Exception, *, writer: JobWriter) -> None:
    """An error about one job ends that job, not the others' turn. Its entry does not return.

    That of a job which a later version can read is left, and comes again after its lease.
    """
    if await end_job(entry.job_id, error, writer=writer, action="dispatch"):
        await entry.ack()
