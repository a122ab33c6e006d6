"""EndpointDispatcher: starts the waiting jobs of one endpoint on its workers, in fair order.

`Prefetch` adds the jobs of the queue to the waiting jobs. `EndpointDispatcher` chooses the next job
and its worker, runs the job on a slot, and handles the outcome.

A job prefers a warm worker (delay scheduling: M. Zaharia et al., 2010). If all warm workers are
busy, the job waits for some seconds, and the next jobs in the order may start before it. After the
wait the job gets any worker. Without the wait, jobs with different checkpoints would make each
worker load repeatedly. With a long wait, slots would stay empty.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from pydantic import SecretStr

from actors.job_error import fail_job_and_ack
from actors.scheduler.cluster import ActorDied, ActorLost
from actors.scheduler.expiry import EXPIRY_PERIOD_S, EntryReaper, Expiry
from actors.scheduler.fairness import RunningJobs, WaitingJob, WaitingJobs
from actors.scheduler.pool import WorkerPool
from actors.scheduler.prefetch import BUSY_S, TRANSIENT, Prefetch, Prefetched
from actors.scheduler.slots import Slot
from actors.scheduler.status import EndpointStatus, EndRate
from actors.scheduler.worker import Worker
from actors.worker.job_actor import RunOutcome
from events.bus.queues import LEASE_S, JobQueue
from events.decisions import FailAttempt, FailDispatch
from events.errors import LogUnavailable
from events.job import Job
from events.log import JobWriter
from events.store.records import Endpoint
from events.types import Blame
from settings.constant import constant
from storage.service_secret import unsealed
from telemetry.logs import job_log_fields

logger = logging.getLogger(__name__)

DISPATCHER_LEASE_S = constant("DISPATCHER_LEASE_S", 6.0)
"""Seconds after the last renewal of the lease at which another dispatcher takes over."""
_MAX_DISPATCH_FAILURES = constant("MAX_DISPATCH_FAILURES", 5)
"""Number of deaths of job actors before an attempt, after which a job becomes a dead letter."""
_FAIR_QUANTUM = constant("FAIR_QUANTUM", 10.0)
"""Megapixel-steps that an owner of weight 1 may spend in a round of deficit round robin."""
_WARM_WAIT_S = constant("WARM_WAIT_S", 3.0)
"""Seconds for which a job waits for a warm worker, while workers without its checkpoint are idle.
The best value is a fifth to a half of the time of a load.
"""
_CANDIDATES = 16
"""Number of owners whose jobs are considered when a job is chosen."""
_HOLD_LEASES = 2
"""A prefetched entry is held for this many durations of a dispatcher lease, but at most for one
duration of a job lease.
"""
_LOST_LEASES = 3
"""An entry that is not delivered for this many durations of a job lease counts as lost."""

Placed: TypeAlias = tuple[Prefetched, Worker, Slot]
"""A job with the worker and the slot that it was given."""


class EndpointDispatcher:
    def __init__(
        self,
        endpoint: Endpoint,
        *,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        running_jobs: RunningJobs,
        end_rate: EndRate,
        secret: bytes,
        lease_s: float = LEASE_S,
        expiry_period_s: float = EXPIRY_PERIOD_S,
        max_dispatch_failures: int = _MAX_DISPATCH_FAILURES,
    ) -> None:
        """`writer` must use a `RetryingLog`. `running_jobs` counts the jobs of all endpoints.
        `end_rate` survives a change of the endpoint's row. `secret` is the secret of the service,
        which workers do not have. The lease of a running job lasts `lease_s` seconds.
        """
        self.endpoint = endpoint
        self.status = EndpointStatus(
            endpoint.id, queue=queue, writer=writer, pool=pool, end_rate=end_rate
        )
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._running_jobs = running_jobs
        self._end_rate = end_rate
        self._secret = secret
        self._max_dispatch_failures = max_dispatch_failures
        self._waiting = WaitingJobs(
            quantum=_FAIR_QUANTUM, runs_some=lambda owner: running_jobs.count(owner, endpoint) > 0
        )
        self._wake_at: float | None = None
        """Time of the next end of a wait for a warm worker. None if the last `_choose` found a job,
        or if no job waits for a warm worker.
        """
        self._last_depth = 0
        self.prefetch = Prefetch(
            endpoint.id,
            queue=queue,
            writer=writer,
            waiting=self._waiting,
            pool=pool,
            hold_s=min(_HOLD_LEASES * DISPATCHER_LEASE_S, lease_s),
            lease_s=lease_s,
        )
        self._expiry = Expiry(
            endpoint.id, queue=queue, writer=writer, pool=pool, period_s=expiry_period_s
        )
        self._entry_reaper = EntryReaper(
            endpoint.id,
            queue=queue,
            writer=writer,
            prefetch=self.prefetch,
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
                    prefetched, worker, slot = await self._take_next()
                    task = group.create_task(self._run(prefetched, worker, slot))
                    # This callback also runs if the task is cancelled before its first step.
                    task.add_done_callback(partial(self._end_run, prefetched))

    async def _demand(self) -> int:
        """Return the number of jobs on the queue, or the last known number during an outage."""
        with suppress(LogUnavailable):
            self._last_depth = await self._queue.depth(self.endpoint.id)
        return self._last_depth

    async def _take_next(self) -> Placed:
        """Wait until a job may start. Then reserve a slot and count the job, without an `await` in
        between.
        """
        while (chosen := self._choose(now := time.monotonic())) is None:
            wait_s = None if self._wake_at is None else self._wake_at - now
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._pool.changed()
        job, number = chosen
        worker, slot = self._pool.slot_index.pick_slot(number, job.checkpoint)
        prefetched = self.prefetch.begin_flight(job.job_id)
        slot.reserve(prefetched.entry)
        self._running_jobs.add(job.owner, self.endpoint)
        self._waiting.charge(job)
        self._waiting.note_running(job.owner)
        return prefetched, worker, slot

    def _choose(self, now: float) -> tuple[WaitingJob, int] | None:
        """Return the job that starts next and the number of its worker, or None if no job may start
        now.
        """
        self._wake_at = None
        free = self._pool.slot_index
        if free.lowest_idle() is None:
            return None
        # The last free slots are only for owners who run nothing, so that an owner with a large
        # backlog cannot occupy all slots with long jobs.
        only_idle = free.count <= self._running_jobs.slots_kept_free(self.endpoint)
        while True:
            held: list[str] = []
            for job in self._waiting.candidates(_CANDIDATES, only_idle=only_idle):
                if not self._running_jobs.may_start(job.owner):
                    held.append(job.owner)
                elif (number := self._choose_worker(job, now)) is not None:
                    return job, number
            for owner in held:
                self._waiting.hold(owner)
            if not held:
                return None

    def _choose_worker(self, job: WaitingJob, now: float) -> int | None:
        """Return the number of a worker with an idle slot, or None if the job must wait."""
        free = self._pool.slot_index
        if job.checkpoint is None:
            return free.lowest_idle()
        if (number := free.idle_holder_of(job.checkpoint)) is not None:
            return number
        if (number := free.idle_without_checkpoint()) is not None:
            return number
        if not free.is_warm(job.checkpoint):
            return free.least_recently_used()
        if job.warm_wait_began_at is None:
            job.warm_wait_began_at = now
        if (wait_ends := job.warm_wait_began_at + _WARM_WAIT_S) <= now:
            return free.least_recently_used()
        self._wake_at = min(wait_ends, self._wake_at or wait_ends)
        return None

    async def _run(self, prefetched: Prefetched, worker: Worker, slot: Slot) -> None:
        try:
            job = await self.prefetch.renew_and_read(prefetched)
            if not slot.belongs_to(prefetched.entry):
                return
            if job is None:
                # The job must not count as running during the refund.
                self._end_run(prefetched)
                self._waiting.refund(prefetched.waiting)
                slot.release()
            else:
                with job_log_fields(job):
                    await self._dispatch(prefetched, job, worker, slot)
        except Exception as error:  # noqa: BLE001 - `fail_job_and_ack` logs it
            if not isinstance(error, TRANSIENT):
                await fail_job_and_ack(
                    prefetched.entry, error, writer=self._writer, action="dispatch"
                )
            if slot.belongs_to(prefetched.entry):
                slot.recycle()

    def _end_run(self, prefetched: Prefetched, _: object = None) -> None:
        """Count the end of a run, once."""
        if self.prefetch.end_flight(prefetched):
            self._running_jobs.remove(prefetched.waiting.owner, self.endpoint)

    def _note_end(self, owner: str) -> None:
        """Note that a job of this owner has ended on any endpoint."""
        self._waiting.release(owner)
        self._waiting.note_running(owner)
        self._pool.wake()

    async def _dispatch(self, prefetched: Prefetched, job: Job, worker: Worker, slot: Slot) -> None:
        assert slot.actor is not None
        slot.jobs_run += 1
        try:
            outcome = await slot.actor.run(prefetched.entry, job, self._extra_data(job))
        except ActorDied as death:
            fields = {"action": "actor_died", "job_id": job.id, "error": str(death)}
            logger.warning("a job actor died", extra=fields)
            if slot.belongs_to(prefetched.entry):
                await self._handle_actor_death(prefetched, worker, slot, death)
            if slot.belongs_to(prefetched.entry):
                slot.replace()
            return
        if not slot.belongs_to(prefetched.entry):
            return
        if outcome is RunOutcome.BUSY:
            self._waiting.refund(prefetched.waiting)
            await prefetched.entry.redeliver_in(BUSY_S)
        elif outcome is RunOutcome.RETRY:
            worker.mark_unready()
        elif outcome in {RunOutcome.COMPLETED, RunOutcome.ENDED}:
            self._end_rate.note_end()
        # The actor is kept after a failed attempt (RETRY), because the engine has failed and not
        # the actor.
        if outcome in {RunOutcome.COMPLETED, RunOutcome.RETRY} and not slot.is_expired:
            slot.release()
        else:
            slot.recycle()

    def _extra_data(self, job: Job) -> SecretStr | None:
        """Return the decrypted `extra_data` of a job, or None without any.

        Raises SealBroken if it was encrypted with another secret.
        """
        text = job.submitted.sealed_extra_data
        return None if text is None else SecretStr(unsealed(self._secret, text))

    async def _handle_actor_death(
        self, prefetched: Prefetched, worker: Worker, slot: Slot, death: ActorDied
    ) -> None:
        """Append the events that follow from the death of a job actor.

        If the dead actor had begun an attempt, the entry is put back on the queue at once. If not,
        another actor may run the job, so the entry is delivered again only after its lease. The
        entry of an ended job is acknowledged.
        """
        actor_name = slot.actor_name
        job = await self._writer.load(prefetched.job_id)
        if job is None or not slot.belongs_to(prefetched.entry):
            return
        if job.end is None and job.actor is not None and job.actor == actor_name:
            blame = await _cancel_and_blame(job, worker, death)
            message = f"The job actor died: {death}"
            failed = FailAttempt(job.actor, message, final=False, blame=blame)
            job = (await self._writer.execute(failed, job)).job or job
            if job.end is None:
                await prefetched.entry.nak()
                return
        elif job.end is None and not isinstance(death, ActorLost):
            job = await self._count_failure(job, prefetched.attempts)
        if job.end is None:
            self._waiting.refund(prefetched.waiting)
        else:
            await prefetched.entry.ack()

    async def _count_failure(self, job: Job, attempts: int) -> Job:
        """Count the death of a job actor before an attempt, and fail the job after too many."""
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


async def _cancel_and_blame(job: Job, worker: Worker, death: ActorDied) -> Blame:
    """Cancel the run of a job whose actor died. Returns the blame of the job.

    The job is a bystander if its actor was lost with its node, or if the device has not worked for
    the job. In all other cases the job is a suspect, even if the answer of the engine is missing.
    """
    had_begun = await worker.cancel_run(job.id, job.attempts)
    is_bystander = isinstance(death, ActorLost) or had_begun is False
    return Blame.BYSTANDER if is_bystander else Blame.SUSPECT
