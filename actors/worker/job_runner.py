"""JobRunner: runs one job after another on a worker, and writes their events.

Every event is appended at an expected sequence, and `Started` has the name of the runner. A runner
may lose a job, for example if its process is stopped for longer than the lease. Its next append
then fails. The runner reads the events, finds the name of another runner, and stops. It neither
acknowledges nor renews the entry.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import StrEnum
from functools import partial

from actors.job_error import give_up_after_error
from actors.worker.attempt import LEASE_RENEW_S, Attempt, AttemptLimits, Lease, ReportProgress
from actors.worker.engine_host import EngineClient
from actors.worker.plan import Plan
from events.decisions import Start
from events.errors import JobUnreadable, ServiceError
from events.job import Job
from events.log import EventLog, JobWriter, Outcome
from events.queue import QueueEntry
from events.types import Completed
from settings.constant import constant
from storage.images import ImageStore
from telemetry.logs import about
from telemetry.spans import TraceIds

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS_TOTAL = constant("MAX_ATTEMPTS_TOTAL", 100)
"""Largest number of failed attempts at a job, not counting attempts as a bystander. The number is
large, because a job that ends its engine also ends attempts at other jobs.
"""


class RunOutcome(StrEnum):
    COMPLETED = "completed"
    """All images are stored, and the entry is acknowledged."""
    ENDED = "ended"
    """The job ended in another way or is unknown, and the entry is acknowledged."""
    RETRY = "retry"
    """The attempt failed, and the entry is given back."""
    LOST = "lost"
    """Another actor has the job, or only a later version can read the job. The entry is neither
    acknowledged nor given back.
    """
    BUSY = "busy"
    """The actor runs another job or has retired. It did nothing for this job."""


class JobRunner:
    def __init__(
        self,
        *,
        actor: str,
        log: EventLog,
        images: ImageStore,
        engine: EngineClient,
        plan: Callable[[Job], Plan],
        report_progress: ReportProgress,
        limits: AttemptLimits,
        max_attempts: int,
        now: Callable[[], datetime],
        max_attempts_total: int = _MAX_ATTEMPTS_TOTAL,
        lease_renew_s: float = LEASE_RENEW_S,
        is_traced: bool = False,
    ) -> None:
        """`log` must wait until an outage is over (`RetryingLog`)."""
        self._actor = actor
        self._log = log
        self._writer = JobWriter(log)
        self._images = images
        self._engine = engine
        self._plan = plan
        self._report_progress = report_progress
        self._limits = limits
        self._lease_renew_s = lease_renew_s
        self._max_attempts = max_attempts
        self._max_attempts_total = max_attempts_total
        self._now = now
        self._is_traced = is_traced
        self._leases: dict[str, Lease] = {}

    async def run(
        self,
        entry: QueueEntry,
        known: Job | None = None,
        *,
        after_attempts: int | None = None,
        given_at: datetime | None = None,
    ) -> RunOutcome:
        """Run the job of a queue entry.

        `known` saves a read. If it is stale, the expected sequence of `Started` conflicts and the
        job is read again. For `after_attempts` see `Start`. `given_at` is the time at which the
        dispatcher gave the job to this actor.

        Raises ServiceError. Any other error ends the job.
        """
        try:
            start = partial(self._start, after_attempts=after_attempts, given_at=given_at)
            return await self._run(entry, known, start)
        except Exception as error:
            if isinstance(error, ServiceError) and not isinstance(error, JobUnreadable):
                raise
            if not await give_up_after_error(
                entry.job_id, error, writer=self._writer, action="run"
            ):
                return RunOutcome.LOST
            await entry.ack()
            return RunOutcome.ENDED

    async def _run(
        self, entry: QueueEntry, known: Job | None, start: Callable[[Job], Awaitable[Outcome]]
    ) -> RunOutcome:
        job = known or await self._writer.load(entry.job_id)
        if job is None:
            await entry.ack()
            return RunOutcome.ENDED
        outcome = await start(job)
        job = outcome.job or job
        lease = self._lease_on(entry)
        if job.end is None:
            if not outcome.added:
                return RunOutcome.LOST  # `Started` was not stored, so another actor has the job
            self._leases[job.id] = lease
            try:
                with about(job):
                    job = await self._attempt(job, lease)
            finally:
                del self._leases[job.id]
        with about(job):
            return await self._ack_or_nak(job, lease.entry)

    def take_delivery(self, entry: QueueEntry) -> bool:
        """Continue with a new delivery of the entry. Returns False if this runner does not run the
        job of the entry.
        """
        lease = self._leases.get(entry.job_id)
        if lease is not None:
            lease.entry = entry
        return lease is not None

    async def _start(
        self, job: Job, *, after_attempts: int | None, given_at: datetime | None
    ) -> Outcome:
        command = Start(
            self._actor,
            max_attempts=self._max_attempts,
            max_attempts_total=self._max_attempts_total,
            now=self._now(),
            after_attempts=after_attempts,
            given_at=given_at if self._is_traced else None,
        )
        return await self._writer.execute(command, job)

    def _lease_on(self, entry: QueueEntry) -> Lease:
        return Lease(
            log=self._log,
            writer=self._writer,
            entry=entry,
            actor=self._actor,
            renew_s=self._lease_renew_s,
        )

    async def _attempt(self, job: Job, lease: Lease) -> Job:
        fields = {"action": "start", "job_id": job.id, "attempt": job.attempts}
        logger.info("attempt started", extra=fields)
        attempt = Attempt(
            job,
            actor=self._actor,
            writer=self._writer,
            engine=self._engine,
            images=self._images,
            plan=self._plan,
            report_progress=self._report_progress,
            limits=self._limits,
            now=self._now,
            name=TraceIds.of(job).attempt_link(job.attempts) if self._is_traced else "",
        )
        return await attempt.run(lease)

    async def _ack_or_nak(self, job: Job, entry: QueueEntry) -> RunOutcome:
        """Acknowledge the entry of an ended job. Give back the entry of a job whose attempt by this
        actor has failed.
        """
        if job.end is not None:
            await entry.ack()
            fields = {"action": "end", "job_id": job.id, "end": type(job.end).__name__}
            logger.info("job ended", extra=fields)
            is_completed = isinstance(job.end, Completed)
            return RunOutcome.COMPLETED if is_completed else RunOutcome.ENDED
        if job.actor == self._actor:
            await entry.nak()
            return RunOutcome.RETRY
        return RunOutcome.LOST
