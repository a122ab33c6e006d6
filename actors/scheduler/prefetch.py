"""Prefetch: pulls the queue entries of an endpoint and holds them until their jobs start.

The scheduler chooses among all waiting jobs, so each entry is pulled when it arrives, up to a
bound. Each entry is held for some seconds, and the hold is renewed. The entries of a dead
dispatcher are therefore delivered again at about the time at which another dispatcher takes over.
Nothing is stored about prefetched jobs, so nothing has to be repaired.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from actors.job_error import give_up_after_error
from actors.scheduler.fairness import WaitingJob, WaitingJobs, waiting_job
from events.bus.queues import JobQueue, QueueEntry
from events.decisions import Expire
from events.errors import LogUnavailable, ReadTimeout
from events.ids import CONSUMERS
from events.job import Job
from events.log import JobWriter, utc_now
from events.retry import keep_trying
from settings.constant import constant

_PREFETCHED_JOBS = constant("PREFETCHED_JOBS", 20_000)
"""Largest number of waiting jobs of an endpoint that are prefetched. Owners share the endpoint
fairly among these jobs. When this many jobs are held, a consumer prefetches a job only if no job of
that consumer is held. All jobs of an owner on the endpoint come from the same consumer, one of
`CONSUMERS`. A job needs about 1 kB of the dispatcher's memory, and 10,000 jobs need 2 % of a core
of NATS.
"""
_PULL_TIMEOUT_S = 30.0
_BATCH = 64
"""Largest number of entries in one pull."""
_READS_AT_ONCE = 64
_MOST_KEPT_BYTES = 32 * 1024
"""Largest size in bytes of the events of a job that is kept in memory for some seconds. A larger
job is read again when it is needed. A dispatcher that starts reads a whole backlog at once, and
large requests could use up its memory.
"""
_CHECKED = 64
"""Number of prefetched jobs that are read again in each period. The jobs whose last read is oldest
come first.
"""
TRANSIENT = (LogUnavailable, ReadTimeout)
"""Errors that say nothing about a job. After such an error the entry is delivered again."""


@dataclass(slots=True, eq=False)
class Prefetched:
    """A job with the queue entry that the dispatcher holds for it."""

    entry: QueueEntry
    waiting: WaitingJob
    consumer: int
    """Index of the consumer that delivered the entry."""
    attempts: int
    """Number of the job's attempts when its entry arrived."""
    job: Job | None
    """The job as it was when its entry arrived. None after some seconds, or if the events of the
    job are large.
    """
    read_at: float
    taken_at: float = 0.0

    @property
    def job_id(self) -> str:
        return self.waiting.job_id


class Prefetch:
    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        waiting: WaitingJobs,
        is_running: Callable[[Job, QueueEntry], Awaitable[bool]],
        on_new: Callable[[], None],
        hold_s: float,
        most: int = _PREFETCHED_JOBS,
    ) -> None:
        """Create the prefetch of an endpoint. It adds the jobs of the endpoint to `waiting`.

        `is_running` returns whether a job runs already, and passes the new delivery of its entry to
        its actor. `on_new` is called for each job that begins to wait. At most `most` jobs are
        held, plus one for each consumer. A hold lasts `hold_s` seconds.
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
        self._jobs: dict[str, Prefetched] = {}
        """Held jobs by id, in the order of arrival."""
        self._of_consumer: Counter[int] = Counter()
        self._arriving: dict[str, QueueEntry] = {}
        """Pulled entries whose jobs have not been read, by token."""
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    @property
    def has_room(self) -> bool:
        """Whether the prefetch holds fewer jobs than it may hold, and so adds every job that
        arrives.
        """
        return len(self._jobs) < self._most

    async def run(self) -> None:
        """Prefetch until cancelled. At the end all entries are returned to the queue."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew_holds())
                group.create_task(self._check_again())
                for consumer in range(CONSUMERS):
                    group.create_task(self._pull(group, consumer))
        finally:
            for entry in [*(each.entry for each in self._jobs.values()), *self._arriving.values()]:
                await entry.nak()

    def take(self, job_id: str) -> Prefetched:
        """Remove a job that was given a slot. The caller must then renew the entry of the job."""
        taken = self._jobs[job_id]
        self._remove(taken)
        taken.taken_at = time.monotonic()
        return taken

    async def ready(self, taken: Prefetched) -> Job | None:
        """Renew the entry of a taken job. Returns the job, or None if it has ended or runs already.

        Raises the errors of reading the job.
        """
        try:
            await taken.entry.renew()
            return taken.job or await self._read_waiting(taken)
        except asyncio.CancelledError:
            await taken.entry.nak()
            raise

    async def _pull(self, group: asyncio.TaskGroup, consumer: int) -> None:
        await keep_trying(lambda: self._pull_from(group, consumer), on=TRANSIENT)

    async def _pull_from(self, group: asyncio.TaskGroup, consumer: int) -> None:
        async with self._queue.consume(self._endpoint, consumer) as entries:
            while True:
                if self._is_full(consumer):
                    await asyncio.sleep(self._period_s)
                # A full prefetch still pulls entries from time to time. An entry may be a new
                # delivery of a running job, which shows that the actor of the job hangs.
                batch = await entries.next(most=_BATCH, timeout_s=_PULL_TIMEOUT_S)
                await self._receive_batch(group, batch, consumer)

    def _is_full(self, consumer: int) -> bool:
        return len(self._jobs) >= self._most and self._of_consumer[consumer] > 0

    async def _receive_batch(
        self, group: asyncio.TaskGroup, entries: Sequence[QueueEntry], consumer: int
    ) -> None:
        """Read the jobs of some entries, then handle the entries.

        Each entry is handled in its own task, because `_sort` may wait for the answer of an actor.
        """
        self._arriving |= {entry.ack_subject: entry for entry in entries}
        found = await asyncio.gather(*map(self._load, entries), return_exceptions=True)
        for entry, job in zip(entries, found, strict=True):
            group.create_task(self._receive(entry, job, consumer))

    async def _load(self, entry: QueueEntry) -> Job | None:
        async with self._reads:
            return await self._writer.load(entry.job_id)

    async def _receive(
        self, entry: QueueEntry, found: Job | BaseException | None, consumer: int
    ) -> None:
        with suppress(*TRANSIENT):
            try:
                if isinstance(found, BaseException):
                    raise found
                await self._sort(entry, found, consumer)
            except TRANSIENT:
                raise
            except Exception as error:  # noqa: BLE001 - `drop_entry` logs it
                await drop_entry(entry, error, writer=self._writer)
        self._arriving.pop(entry.ack_subject, None)

    async def _sort(self, entry: QueueEntry, job: Job | None, consumer: int) -> None:
        """Handle an entry. Its job has ended, runs, is held already, or is new."""
        if job is None or job.end is not None:
            self._let_go(self._jobs.get(entry.job_id))
            await entry.ack()
        elif await self._is_running(job, entry):
            self._let_go(self._jobs.get(entry.job_id))
        elif (known := self._jobs.get(job.id)) is not None:
            # The entry was delivered again, because its hold could not be renewed in time, for
            # example while NATS was unavailable.
            known.entry, known.attempts, known.job = entry, job.attempts, None
        elif self._is_full(consumer):
            await entry.redeliver_in(self._hold_s)
        else:
            self._add(entry, job, consumer)

    def _add(self, entry: QueueEntry, job: Job, consumer: int) -> None:
        waiting, now = waiting_job(job), time.monotonic()
        kept = job if job.log_bytes <= _MOST_KEPT_BYTES else None
        self._jobs[job.id] = Prefetched(entry, waiting, consumer, job.attempts, kept, now)
        self._of_consumer[consumer] += 1
        self._waiting.put(waiting, first=job.attempts > 0)
        self._on_new()

    async def _renew_holds(self) -> None:
        """Renew the hold of every entry three times in its duration.

        `Prefetched.job` is set to None, because the job may have changed since it was read.
        """
        while True:
            await asyncio.sleep(self._period_s)
            for number, each in enumerate(list(self._jobs.values())):
                if self._jobs.get(each.job_id) is each:
                    each.job = None
                    await each.entry.redeliver_in(self._hold_s)
                if number % _BATCH == _BATCH - 1:
                    await asyncio.sleep(0)  # The pause lets other tasks run.

    async def _check_again(self) -> None:
        """Remove jobs that need no slot any more, because they have ended or another dispatcher has
        started them.
        """
        while True:
            await asyncio.sleep(self._period_s)
            longest = heapq.nsmallest(_CHECKED, self._jobs.values(), key=lambda each: each.read_at)
            await asyncio.gather(*map(self._check, longest))

    async def _check(self, prefetched: Prefetched) -> None:
        with suppress(*TRANSIENT):
            try:
                if await self._read_waiting(prefetched) is None:
                    self._let_go(prefetched)
            except TRANSIENT:
                raise
            except Exception as error:  # noqa: BLE001 - `drop_entry` logs it
                self._let_go(prefetched)
                await drop_entry(prefetched.entry, error, writer=self._writer)

    async def _read_waiting(self, prefetched: Prefetched) -> Job | None:
        """The job if it still waits, or None.

        The entry of an ended job is acknowledged. The result is also None if another dispatcher has
        started the job. The entry is then kept, so that it is delivered again if that dispatcher
        dies.
        """
        prefetched.read_at = time.monotonic()
        job = await self._load(prefetched.entry)
        if job is not None and job.cancel_requested and job.attempts == prefetched.attempts:
            # The actor of the last attempt died before it could confirm the cancellation.
            job = (await self._writer.execute(Expire(utc_now()), job)).job or job
        if job is None or job.end is not None:
            await prefetched.entry.ack()
            return None
        return job if job.attempts == prefetched.attempts else None

    def _let_go(self, prefetched: Prefetched | None) -> None:
        """Remove a held job. A job that was given a slot, or None, is ignored."""
        if prefetched is not None and self._jobs.get(prefetched.job_id) is prefetched:
            self._remove(prefetched)
            self._waiting.remove(prefetched.waiting)

    def _remove(self, prefetched: Prefetched) -> None:
        del self._jobs[prefetched.job_id]
        self._of_consumer[prefetched.consumer] -= 1


async def drop_entry(entry: QueueEntry, error: Exception, *, writer: JobWriter) -> None:
    """End the job of an entry after an error about the job, and remove the entry from the queue.

    If only a later version can read the job, the entry stays and is delivered again after its
    lease.
    """
    if await give_up_after_error(entry.job_id, error, writer=writer, action="dispatch"):
        await entry.ack()


class InFlight:
    """The jobs that were given to slots and have not ended.

    A job may be in flight twice, if its entry was delivered again before its first slot has
    answered.
    """

    def __init__(self) -> None:
        self._by_job: dict[str, set[Prefetched]] = {}

    def __contains__(self, taken: Prefetched) -> bool:
        return taken in self.of(taken.job_id)

    def add(self, taken: Prefetched) -> None:
        self._by_job.setdefault(taken.job_id, set()).add(taken)

    def remove(self, taken: Prefetched) -> None:
        left = self._by_job[taken.job_id]
        left.remove(taken)
        if not left:
            del self._by_job[taken.job_id]

    def of(self, job_id: str) -> Collection[Prefetched]:
        return self._by_job.get(job_id, ())
