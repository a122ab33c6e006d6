"""Prefetch: pulls the queue entries of an endpoint and holds them until their jobs start.

A pulled entry may also be a new delivery of a running job. The job actor then continues with this
delivery, or is replaced.

The dispatcher chooses among all waiting jobs, so each entry is pulled when it arrives, up to a
bound. An entry is held for some seconds, and the hold is renewed. So the entries of a dead
dispatcher are delivered again at about the time at which another dispatcher takes over. Nothing is
stored about prefetched jobs.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from actors.job_error import fail_job_and_ack
from actors.scheduler.fairness import WaitingJob, WaitingJobs, waiting_job
from actors.scheduler.pool import WorkerPool
from events.bus.queues import JobQueue, QueueEntry
from events.decisions import Expire
from events.errors import LogUnavailable, ReadTimeout
from events.ids import CONSUMERS
from events.job import Job
from events.log import JobWriter, utc_now
from events.retry import keep_trying
from settings.constant import constant
from telemetry.logs import job_log_fields

logger = logging.getLogger(__name__)

BUSY_S = 2.0
"""Seconds until an entry is delivered again if its job may be running, or if the actor of its slot
runs another job.
"""

_PREFETCHED_JOBS = constant("PREFETCHED_JOBS", 20_000)
"""Largest number of prefetched jobs of an endpoint. The order is fair among the prefetched jobs.

A full prefetch accepts a job only from a consumer of which no job is held. All jobs of an owner on
an endpoint have the same consumer, one of `CONSUMERS`. A prefetched job needs about 1 kB of memory
in the dispatcher, and 10,000 of them need 2 % of a core in NATS.
"""
_PULL_TIMEOUT_S = 30.0
_BATCH = 64
"""Largest number of entries in one pull."""
_READS_AT_ONCE = 64
_MOST_KEPT_BYTES = 32 * 1024
"""Largest size in bytes of the events of a job that is kept in memory for some seconds. Without
this limit, a backlog of large requests could exhaust the memory of a dispatcher that starts.
"""
_CHECKED = 64
"""Number of prefetched jobs that are read again in each period, the longest unread first."""
TRANSIENT = (LogUnavailable, ReadTimeout)
"""Errors that say nothing about a job. After such an error the entry is delivered again."""


@dataclass(slots=True, eq=False)
class Prefetched:
    """A job with its queue entry, which the dispatcher holds."""

    entry: QueueEntry
    waiting: WaitingJob
    consumer: int
    """Index of the consumer that delivered the entry."""
    attempts: int
    """Number of the job's attempts when its entry arrived."""
    job: Job | None
    """The job when its entry arrived. None after some seconds, or if the job is large."""
    read_at: float
    given_at: float = 0.0
    """Time at which the job was given to a slot."""

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
        pool: WorkerPool,
        hold_s: float,
        lease_s: float,
        most: int = _PREFETCHED_JOBS,
    ) -> None:
        """The prefetched jobs are added to `waiting`.

        At most `most` jobs are held, plus one for each consumer. A hold lasts `hold_s` seconds. The
        lease of a running job lasts `lease_s` seconds.
        """
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._waiting = waiting
        self._pool = pool
        self._most = most
        self._hold_s = hold_s
        self._period_s = hold_s / 3
        self._answer_s = lease_s / 3
        """Time-out in seconds of `take_delivery`."""
        self._jobs: dict[str, Prefetched] = {}
        """Held jobs by id, in the order of arrival."""
        self._of_consumer: Counter[int] = Counter()
        self._arriving: dict[str, QueueEntry] = {}
        """Pulled entries that are not handled yet, by ack subject."""
        self._in_flight: dict[str, list[Prefetched]] = {}
        """Jobs in flight by id. A job may be in flight twice, if its entry was delivered again
        before its first slot has answered.
        """
        self._reads = asyncio.Semaphore(_READS_AT_ONCE)

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def has_room(self) -> bool:
        """Whether every job that arrives is prefetched."""
        return len(self._jobs) < self._most

    def knows(self, job_id: str) -> bool:
        """Return whether the job is prefetched, in flight, or on a worker."""
        return (
            job_id in self._jobs
            or job_id in self._in_flight
            or self._pool.slot_index.slot_of(job_id) is not None
        )

    async def run(self) -> None:
        """Prefetch until cancelled. Then put the entries back that were not given to a slot."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._renew_holds())
                group.create_task(self._check_again())
                for consumer in range(CONSUMERS):
                    group.create_task(self._pull(group, consumer))
        finally:
            for entry in [*(each.entry for each in self._jobs.values()), *self._arriving.values()]:
                await entry.nak()

    def begin_flight(self, job_id: str) -> Prefetched:
        """Note that a slot was given the job. Call `renew_and_read` afterwards."""
        prefetched = self._jobs[job_id]
        self._remove(prefetched)
        self._in_flight.setdefault(job_id, []).append(prefetched)
        prefetched.given_at = time.monotonic()
        return prefetched

    def end_flight(self, prefetched: Prefetched) -> bool:
        """Note that the run of a job has ended. Returns False if this was noted before."""
        runs = self._in_flight.get(prefetched.job_id, [])
        if prefetched not in runs:
            return False
        runs.remove(prefetched)
        if not runs:
            del self._in_flight[prefetched.job_id]
        return True

    async def renew_and_read(self, prefetched: Prefetched) -> Job | None:
        """Renew the entry of a job in flight. Returns the job, or None if it no longer waits.

        Raises an error if the job cannot be read.
        """
        try:
            await prefetched.entry.renew()
            return prefetched.job or await self._read_waiting(prefetched)
        except asyncio.CancelledError:
            await prefetched.entry.nak()
            raise

    async def _pull(self, group: asyncio.TaskGroup, consumer: int) -> None:
        await keep_trying(lambda: self._pull_from(group, consumer), on=TRANSIENT)

    async def _pull_from(self, group: asyncio.TaskGroup, consumer: int) -> None:
        async with self._queue.consume(self._endpoint, consumer) as entries:
            while True:
                if self._is_full(consumer):
                    await asyncio.sleep(self._period_s)
                # A full prefetch also pulls entries, but slowly, because an entry may be a new
                # delivery of a running job whose actor hangs.
                batch = await entries.next(most=_BATCH, timeout_s=_PULL_TIMEOUT_S)
                await self._receive_batch(group, batch, consumer)

    def _is_full(self, consumer: int) -> bool:
        return len(self._jobs) >= self._most and self._of_consumer[consumer] > 0

    async def _receive_batch(
        self, group: asyncio.TaskGroup, entries: Sequence[QueueEntry], consumer: int
    ) -> None:
        """Read the jobs of some entries, then handle each entry in its own task, because
        `_handle_entry` may wait for the answer of an actor.
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
                await self._handle_entry(entry, found, consumer)
            except TRANSIENT:
                raise
            except Exception as error:  # noqa: BLE001 - `fail_job_and_ack` logs it
                await fail_job_and_ack(entry, error, writer=self._writer, action="dispatch")
        self._arriving.pop(entry.ack_subject, None)

    async def _handle_entry(self, entry: QueueEntry, job: Job | None, consumer: int) -> None:
        """Handle an entry whose job has ended, is running, is held already, or is new."""
        if job is None or job.end is not None:
            self._discard(self._jobs.get(entry.job_id))
            await entry.ack()
        elif await self._pass_to_running_actor(job, entry):
            self._discard(self._jobs.get(entry.job_id))
        elif (known := self._jobs.get(job.id)) is not None:
            # The hold could not be renewed in time, for example while NATS was unavailable.
            known.entry, known.attempts, known.job = entry, job.attempts, None
        elif self._is_full(consumer):
            await entry.redeliver_in(self._hold_s)
        else:
            self._add(entry, job, consumer)

    async def _pass_to_running_actor(self, job: Job, entry: QueueEntry) -> bool:
        """If the job of an entry is running, pass this delivery to its actor. Returns whether the
        entry is handled.

        The lease of a running job ends if NATS is unavailable or the actor hangs. An actor that
        does not accept the new delivery is replaced, and the result is False. In two cases the
        actor is not called, and the result is True: another dispatcher may have started the job, or
        a slot was given the job just now.
        """
        found = self._pool.slot_index.slot_of(job.id)
        if found is None:
            # An adopted actor that has not reported yet may run the job.
            if may_run := job.has_running_attempt and self._pool.may_run(job.actor):
                await entry.redeliver_in(BUSY_S)
            return may_run
        worker, slot = found
        entry_before = slot.entry
        if self._is_just_given(job) or (
            slot.actor is not None
            and await slot.actor.take_delivery(entry, timeout_s=self._answer_s)
        ):
            return True
        with job_log_fields(job):
            fields = {"action": "actor_replaced", "job_id": job.id}
            logger.warning("a job actor does not answer and is replaced", extra=fields)
        worker.mark_unready()  # The actor may hang because the engine hangs.
        await worker.cancel_run(job.id, job.attempts)
        # During `cancel_run`, this slot may have been given another delivery of the job.
        if slot.job_id == job.id and slot.belongs_to(entry_before):
            slot.replace()
        return False

    def _is_just_given(self, job: Job) -> bool:
        """Return whether a slot was given the job so recently that this delivery may be older."""
        since = time.monotonic() - self._answer_s
        return any(
            prefetched.attempts == job.attempts and prefetched.given_at > since
            for prefetched in self._in_flight.get(job.id, ())
        )

    def _add(self, entry: QueueEntry, job: Job, consumer: int) -> None:
        waiting, now = waiting_job(job), time.monotonic()
        kept = job if job.log_bytes <= _MOST_KEPT_BYTES else None
        self._jobs[job.id] = Prefetched(entry, waiting, consumer, job.attempts, kept, now)
        self._of_consumer[consumer] += 1
        self._waiting.put(waiting, first=job.attempts > 0)
        self._pool.wake()

    async def _renew_holds(self) -> None:
        """Renew the hold of each entry in each period, and forget the job that was read, because it
        may have changed.
        """
        while True:
            await asyncio.sleep(self._period_s)
            for number, each in enumerate(list(self._jobs.values())):
                if self._jobs.get(each.job_id) is each:
                    each.job = None
                    await each.entry.redeliver_in(self._hold_s)
                if number % _BATCH == _BATCH - 1:
                    await asyncio.sleep(0)  # Other tasks run now.

    async def _check_again(self) -> None:
        """Discard jobs that have ended or that another dispatcher has started."""
        while True:
            await asyncio.sleep(self._period_s)
            longest = heapq.nsmallest(_CHECKED, self._jobs.values(), key=lambda each: each.read_at)
            await asyncio.gather(*map(self._check, longest))

    async def _check(self, prefetched: Prefetched) -> None:
        with suppress(*TRANSIENT):
            try:
                if await self._read_waiting(prefetched) is None:
                    self._discard(prefetched)
            except TRANSIENT:
                raise
            except Exception as error:  # noqa: BLE001 - `fail_job_and_ack` logs it
                self._discard(prefetched)
                await fail_job_and_ack(
                    prefetched.entry, error, writer=self._writer, action="dispatch"
                )

    async def _read_waiting(self, prefetched: Prefetched) -> Job | None:
        """Return the job if it still waits, or None.

        The entry of an ended job is acknowledged. If another dispatcher has started the job, the
        entry is not acknowledged, so that it is delivered again if that dispatcher dies.
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

    def _discard(self, prefetched: Prefetched | None) -> None:
        """Remove a job, if it is still held."""
        if prefetched is not None and self._jobs.get(prefetched.job_id) is prefetched:
            self._remove(prefetched)
            self._waiting.remove(prefetched.waiting)

    def _remove(self, prefetched: Prefetched) -> None:
        del self._jobs[prefetched.job_id]
        self._of_consumer[prefetched.consumer] -= 1
