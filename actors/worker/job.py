"""JobRunner: takes one job after another to its end on one worker; the writer of their events.

Every event is appended under the job's own sequence and in the runner's own name. So a runner that
lost a job (it was stopped past its lease, say) adds nothing any more: it folds, sees another name,
and stops without a word, an ack or a renewal.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import StrEnum
from functools import partial

from actors.job_error import end_job
from actors.worker.attempt import Attempt, AttemptLimits
from actors.worker.engine_host import EngineClient
from actors.worker.lease import Lease
from actors.worker.plan import Plan
from actors.worker.progress import ReportProgress
from events.decisions import Start
from events.errors import JobUnreadable, ServiceError
from events.job import Job
from events.log import EventLog, JobWriter, Outcome
from events.queue import QueueEntry
from events.types import Completed
from storage.images import ImageStore
from telemetry.tracing.ids import TraceIds
from telemetry.tracing.log_fields import about

logger = logging.getLogger(__name__)


class RunOutcome(StrEnum):
    COMPLETED = "completed"
    """All its images are there, and the entry is acked."""
    ENDED = "ended"
    """It has another end, or is unknown, and the entry is acked."""
    RETRY = "retry"
    """The attempt failed; the entry was given back."""
    LOST = "lost"
    """The job is another actor's, or a later version's. Its entry comes again by itself."""
    BUSY = "busy"
    """The actor runs the job of another dispatcher, or none any more. This one was not touched."""


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
        lease_renew_s: float,
        max_attempts: int,
        max_attempts_total: int,
        now: Callable[[], datetime],
        is_traced: bool = False,
    ) -> None:
        """`log` is one that waits out outages (`PersistentLog`)."""
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
        """Run the job of a queue entry that was delivered to us.

        `known`: the job as it was a while ago, so that it is not read again: what was stored since
        then comes to light when `Started` is appended. `after_attempts`: see `Start`; `given_at`:
        when it was handed out.

        Raises ServiceError. Any other error is about this job, and ends it.
        """
        try:
            start = partial(self._start, after_attempts=after_attempts, given_at=given_at)
            return await self._run(entry, known, start)
        except Exception as error:
            if isinstance(error, ServiceError) and not isinstance(error, JobUnreadable):
                raise
            if not await end_job(entry.job_id, error, writer=self._writer, action="run"):
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
                return RunOutcome.LOST  # also where an earlier attempt was this actor's
            self._leases[job.id] = lease
            try:
                with about(job):
                    job = await self._attempt(job, lease)
            finally:
                del self._leases[job.id]
        with about(job):
            return await self._settle(job, lease.entry)

    def take_delivery(self, entry: QueueEntry) -> bool:
        """The entry was delivered again: True if its job runs here, and goes on with this entry."""
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
        logger.info("started", extra=fields)
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

    async def _settle(self, job: Job, entry: QueueEntry) -> RunOutcome:
        """Acked only after an end was read or stored; given back only while it is ours."""
        if job.end is not None:
            await entry.ack()
            fields = {"action": "end", "job_id": job.id, "end": type(job.end).__name__}
            logger.info("ended", extra=fields)
            is_completed = isinstance(job.end, Completed)
            return RunOutcome.COMPLETED if is_completed else RunOutcome.ENDED
        if job.actor == self._actor:
            await entry.nak()
            return RunOutcome.RETRY
        return RunOutcome.LOST
