"""Deaths of job actors: what is stored of them, and what becomes of their jobs."""

from __future__ import annotations

import logging
from enum import StrEnum

from actors.dispatch.cluster import ActorDied, ActorLost
from actors.dispatch.worker import Worker
from events.decisions import FailAttempt, FailDispatch
from events.job import Job
from events.log import JobWriter
from events.types import Blame

logger = logging.getLogger(__name__)


class AfterDeath(StrEnum):
    ENDED = "ended"
    """The job has an end."""
    BROKEN_OFF = "broken off"
    """The dead actor had started it, so its attempt is said to have failed."""
    NOT_BEGUN = "not begun"
    """The dead actor had not started it. Somebody else may have."""


class Deaths:
    def __init__(self, writer: JobWriter, *, max_dispatch_failures: int) -> None:
        """`max_dispatch_failures`: how many actors may die before they start a job."""
        self._writer = writer
        self._max_dispatch_failures = max_dispatch_failures

    async def note(
        self, job: Job, death: ActorDied, *, worker: Worker, actor: str | None, attempts: int
    ) -> AfterDeath:
        """`actor`: its name as a writer. `attempts`: how many the job had when it was given it."""
        if job.end is not None:
            return AfterDeath.ENDED
        if job.actor is not None and job.actor == actor:
            blame = await _blame(job, worker, death)
            message = f"The job's actor died: {death}"
            failed = FailAttempt(job.actor, message, final=False, blame=blame)
            job = (await self._writer.execute(failed, job)).job or job
            return AfterDeath.BROKEN_OFF if job.end is None else AfterDeath.ENDED
        if not isinstance(death, ActorLost):
            job = await self._count_failure(job, attempts)
        return AfterDeath.NOT_BEGUN if job.end is None else AfterDeath.ENDED

    async def _count_failure(self, job: Job, attempts: int) -> Job:
        """The actor died before it began an attempt. After too many such deaths the job ends."""
        command = FailDispatch(
            attempts,
            "its job actor died before an attempt began",
            max_failures=self._max_dispatch_failures,
        )
        job = (await self._writer.execute(command, job)).job or job
        if job.end is not None:
            fields = {"action": "dead_letter", "job_id": job.id}
            logger.warning("gave up dispatching", extra=fields)
        return job


async def _blame(job: Job, worker: Worker, death: ActorDied) -> Blame:
    """What the death of its actor says of a job. Its run on the engine ends with it."""
    had_begun = await worker.cancel_run(job.id, job.attempts)
    is_spared = isinstance(death, ActorLost) or had_begun is False
    return Blame.BYSTANDER if is_spared else Blame.SUSPECT
