"""EndpointDispatcher: starts the waiting jobs of one endpoint on its workers, in fair order.

A job passes these stages: prefetch -> waiting jobs -> placement -> slot -> outcome.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from enum import StrEnum
from functools import partial

from actors.scheduler.cluster import ActorDied, ActorLost
from actors.scheduler.expiry import EXPIRY_PERIOD_S, EntryReaper, Expiry
from actors.scheduler.fairness import RunningJobs
from actors.scheduler.placement import Placement, WorkerSlot, placer_for
from actors.scheduler.pool import WorkerPool
from actors.scheduler.prefetch import TRANSIENT, InFlight, Prefetch, Prefetched, drop_entry
from actors.scheduler.slots import Slot
from actors.scheduler.status import EndpointStatus
from actors.scheduler.worker import Worker
from actors.worker.job_actor import RunOutcome
from events.bus.queues import LEASE_S, JobQueue, QueueEntry
from events.decisions import FailAttempt, FailDispatch
from events.errors import LogUnavailable
from events.job import Job
from events.log import JobWriter
from events.store.records import Endpoint
from events.types import Blame
from settings.constant import constant
from telemetry.logs import job_log_fields

logger = logging.getLogger(__name__)

DISPATCHER_LEASE_S = constant("DISPATCHER_LEASE_S", 6.0)
"""Seconds for which a dispatcher holds the lease without a renewal. After this time another
dispatcher takes over.
"""
_MAX_DISPATCH_FAILURES = constant("MAX_DISPATCH_FAILURES", 5)
"""Largest number of job actors that may die before they begin an attempt at a job. Then the job
fails and is a dead letter.
"""
_BUSY_S = 2.0
"""Seconds until an entry is delivered again if its job may run on another worker, or if the actor
of its slot runs another job.
"""
_HOLD_LEASES = 2
"""A prefetched entry is held for this many times the duration of a dispatcher lease, but at most
for a job lease. So the entries of a dead dispatcher are delivered again at about the time at which
another dispatcher takes over.
"""
_LOST_LEASES = 3
"""An entry that is not delivered for this many times the duration of a job lease is put on the
queue again.
"""


class EndpointDispatcher:
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        running_jobs: RunningJobs,
        status: EndpointStatus,
        lease_s: float = LEASE_S,
        expiry_period_s: float = EXPIRY_PERIOD_S,
        max_dispatch_failures: int = _MAX_DISPATCH_FAILURES,
    ) -> None:
        """Create the dispatcher of an endpoint.

        `writer` must use a log that waits until an outage is over. `running_jobs` counts the jobs
        of all endpoints. An entry of a running job is delivered again `lease_s` seconds after its
        last renewal.
        """
        self.endpoint = endpoint
        self.status = status
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._running_jobs = running_jobs
        self._answer_s = lease_s / 3
        """Largest time in seconds until an actor answers that it runs a job."""
        self._max_dispatch_failures = max_dispatch_failures
        self._placer = placer_for(endpoint, pool.slot_index, running_jobs)
        self._waiting = self._placer.waiting
        self._in_flight = InFlight()
        self._last_depth = 0
        self.prefetch = Prefetch(
            endpoint.id,
            queue=queue,
            writer=writer,
            waiting=self._waiting,
            is_running=self._hand_to_running_actor,
            on_new=pool.wake,
            hold_s=min(_HOLD_LEASES * DISPATCHER_LEASE_S, lease_s),
        )
        self._expiry = Expiry(
            endpoint.id,
            queue=queue,
            writer=writer,
            is_running=lambda job_id: pool.slot_index.slot_of(job_id) is not None,
            why=pool.trouble,
            period_s=expiry_period_s,
        )
        self._entry_reaper = EntryReaper(
            endpoint.id,
            queue=queue,
            writer=writer,
            is_known=self._is_known,
            has_room=lambda: self.prefetch.has_room,
            patience_s=_LOST_LEASES * lease_s,
        )

    async def run(self) -> None:
        """Dispatch until cancelled. Running jobs are not cancelled."""
        with self._running_jobs.notifying(self._note_end):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pool.keep(self._demand))
                group.create_task(self._expiry.run())
                group.create_task(self._entry_reaper.run())
                group.create_task(self.prefetch.run())
                while True:
                    placement = await self._place_next()
                    taken = self._take(placement)
                    run = self._run(taken, (placement.worker, placement.slot))
                    task = group.create_task(run)
                    task.add_done_callback(partial(self._note_done, taken))

    async def _demand(self) -> int:
        """The number of jobs on the queue. While the queue cannot be read, the last known
        number.
        """
        with suppress(LogUnavailable):
            self._last_depth = await self._queue.depth(self.endpoint.id)
        return self._last_depth

    async def _place_next(self) -> Placement:
        """Wait until a job may start. Returns the job with its slot."""
        while (placement := self._placer.next(now := time.monotonic())) is None:
            wake_at = self._placer.wake_at
            with suppress(TimeoutError):
                async with asyncio.timeout(None if wake_at is None else wake_at - now):
                    await self._pool.changed()
        return placement

    def _take(self, placement: Placement) -> Prefetched:
        """Reserve the slot and count the job, before any other task can run."""
        taken = self.prefetch.take(placement.job.job_id)
        self._in_flight.add(taken)
        placement.slot.reserve(taken.entry)
        self._running_jobs.add(taken.waiting.owner, self.endpoint)
        self._waiting.take(taken.waiting)
        self._waiting.note_running(taken.waiting.owner)
        return taken

    def _is_known(self, job_id: str) -> bool:
        """Whether the job is prefetched, in flight, or found to run on a worker."""
        is_in_flight = bool(self._in_flight.of(job_id))
        return (
            is_in_flight
            or job_id in self.prefetch
            or self._pool.slot_index.slot_of(job_id) is not None
        )

    async def _hand_to_running_actor(self, job: Job, entry: QueueEntry) -> bool:
        """Whether the job of a new delivery already runs. Its actor then continues with this
        delivery.

        The entry of a running job is delivered again if its lease has run out, because the log was
        unavailable or because the actor hangs. An actor that does not accept the new delivery is
        replaced, and the result is False. In two cases the actor is not checked, and the result is
        True: another dispatcher may have started the job, or a slot was given the job just now.
        """
        found = self._pool.slot_index.slot_of(job.id)
        if found is None:
            # After a take-over, an actor that has not reported yet may run the job.
            if may_run := job.has_running_attempt and self._pool.may_run(job.actor):
                await entry.redeliver_in(_BUSY_S)
            return may_run
        worker, slot = found
        entry_before = slot.entry
        if self._is_just_given(job) or await slot.take_delivery(entry, timeout_s=self._answer_s):
            return True
        with job_log_fields(job):
            fields = {"action": "actor_replaced", "job_id": job.id}
            logger.warning("a job actor does not answer and is replaced", extra=fields)
        worker.mark_unready()  # The actor may hang because the engine hangs.
        await worker.cancel_run(job.id, job.attempts)
        # During `cancel_run`, another delivery of the job may have been handled and given to this
        # slot.
        if slot.job_id == job.id and slot.entry is entry_before:
            slot.replace()
        return False

    def _is_just_given(self, job: Job) -> bool:
        """Whether a slot was given the job so recently that this delivery may be older than the
        start.
        """
        since = time.monotonic() - self._answer_s
        return any(
            taken.attempts == job.attempts and taken.taken_at > since
            for taken in self._in_flight.of(job.id)
        )

    async def _run(self, taken: Prefetched, worker_slot: WorkerSlot) -> None:
        worker, slot = worker_slot
        try:
            job = await self.prefetch.ready(taken)
            if slot.entry is not taken.entry:
                return  # The slot was replaced, because the entry was delivered again.
            if job is None:
                # The run ends before the refund, so that the job no longer counts as running.
                self._end_run(taken)
                self._waiting.refund(taken.waiting)
                slot.release()
            else:
                with job_log_fields(job):
                    await self._dispatch(taken, job, worker, slot)
        except Exception as error:  # noqa: BLE001 - `drop_entry` logs it
            if not isinstance(error, TRANSIENT):
                await drop_entry(taken.entry, error, writer=self._writer)
            if slot.entry is taken.entry:
                slot.recycle()

    def _note_done(self, taken: Prefetched, _: asyncio.Task[None]) -> None:
        """Call `_end_run`, also if the task was cancelled before it began."""
        self._end_run(taken)

    def _end_run(self, taken: Prefetched) -> None:
        """Count the end of a run. A second call for the same run changes nothing."""
        if taken in self._in_flight:
            self._in_flight.remove(taken)
            self._running_jobs.remove(taken.waiting.owner, self.endpoint)

    def _note_end(self, owner: str) -> None:
        """Note that a job of this owner has ended, on this or another endpoint."""
        self._waiting.release(owner)
        self._waiting.note_running(owner)
        self._pool.wake()

    async def _dispatch(self, taken: Prefetched, job: Job, worker: Worker, slot: Slot) -> None:
        death: ActorDied | None = None
        outcome: RunOutcome | None = None
        try:
            outcome = await slot.run(taken.entry, job)
        except ActorDied as error:
            fields = {"action": "actor_died", "job_id": job.id, "error": str(error)}
            logger.warning("a job actor died", extra=fields)
            death = error
        if slot.entry is not taken.entry:
            return  # The slot was replaced, because the entry was delivered again during the run.
        if outcome is RunOutcome.BUSY:
            self._waiting.refund(taken.waiting)
            await taken.entry.redeliver_in(_BUSY_S)
        elif outcome is RunOutcome.RETRY:
            worker.mark_unready()
        elif outcome in {RunOutcome.COMPLETED, RunOutcome.ENDED}:
            self.status.note_end()
        if death is not None:
            await self._give_back(taken, worker, slot, death)
            if slot.entry is not taken.entry:
                return  # The slot was replaced while its job was read.
        # After a failed attempt (RETRY) the actor is kept: the engine has failed and not the actor,
        # and a new actor needs seconds to start.
        if death is not None:
            slot.replace()
        elif outcome not in {RunOutcome.COMPLETED, RunOutcome.RETRY} or slot.is_expired:
            slot.recycle()
        else:
            slot.release()

    async def _give_back(
        self, taken: Prefetched, worker: Worker, slot: Slot, death: ActorDied
    ) -> None:
        """Give the entry of a dead actor back.

        If the dead actor was the writer of the job, the entry returns to the queue at once. If not,
        another actor may run the job, so the entry is delivered again only after its lease.
        """
        writer = slot.writer
        job = await self._writer.load(taken.job_id)
        if slot.entry is not taken.entry or job is None:
            return
        match await self._record_death(job, death, worker=worker, actor=writer, taken=taken):
            case AfterDeath.ENDED:
                await taken.entry.ack()
            case AfterDeath.ATTEMPT_FAILED:
                await taken.entry.nak()
            case AfterDeath.NOT_STARTED:
                self._waiting.refund(taken.waiting)

    async def _record_death(
        self, job: Job, death: ActorDied, *, worker: Worker, actor: str | None, taken: Prefetched
    ) -> AfterDeath:
        """Append the events that follow from the death of the job actor that writes as `actor`."""
        if job.end is not None:
            return AfterDeath.ENDED
        if job.actor is not None and job.actor == actor:
            blame = await _cancel_and_blame(job, worker, death)
            message = f"The job actor died: {death}"
            failed = FailAttempt(job.actor, message, final=False, blame=blame)
            job = (await self._writer.execute(failed, job)).job or job
            return AfterDeath.ATTEMPT_FAILED if job.end is None else AfterDeath.ENDED
        if not isinstance(death, ActorLost):
            job = await self._count_failure(job, taken.attempts)
        return AfterDeath.NOT_STARTED if job.end is None else AfterDeath.ENDED

    async def _count_failure(self, job: Job, attempts: int) -> Job:
        """Count the death of a job actor before an attempt. After too many such deaths the job
        ends.
        """
        command = FailDispatch(
            attempts,
            "its job actor died before an attempt began",
            max_failures=self._max_dispatch_failures,
        )
        job = (await self._writer.execute(command, job)).job or job
        if job.end is not None:
            fields = {"action": "dead_letter", "job_id": job.id}
            logger.warning("a job is given up, because its job actors die", extra=fields)
        return job


class AfterDeath(StrEnum):
    """The consequence of a job actor's death for its job."""

    ENDED = "ended"
    """The job has ended."""
    ATTEMPT_FAILED = "attempt failed"
    """The dead actor had started the job, and its attempt is recorded as failed."""
    NOT_STARTED = "not started"
    """The dead actor had not started the job. Another actor may have started it."""


async def _cancel_and_blame(job: Job, worker: Worker, death: ActorDied) -> Blame:
    """Decide whether a job may have killed its actor, and end its run on the engine.

    The job is a bystander if its actor was lost with its node, or if the device had not begun to
    work for the job. In all other cases the job is a suspect, also if it is unknown whether the
    device had begun.
    """
    had_begun = await worker.cancel_run(job.id, job.attempts)
    is_bystander = isinstance(death, ActorLost) or had_begun is False
    return Blame.BYSTANDER if is_bystander else Blame.SUSPECT
