"""Ends jobs on request."""

from __future__ import annotations

from contextlib import suppress

from events.decisions import Cancel, Erase, Quarantine
from events.errors import LogUnavailable
from events.job import Job
from serve_app.services import Services


async def end_job(services: Services, command: Cancel | Quarantine | Erase, job: Job) -> Job:
    """The job afterwards. One that runs ends a moment after a cancel, at once after the others."""
    outcome = await services.writer.execute(command, job)
    ended = job if outcome.job is None else outcome.job
    if job.end is None and ended.end is not None and not job.is_attempted:
        # Spares the dispatcher a pull; it also sees by itself that the job has ended.
        with suppress(LogUnavailable):
            await services.queue.remove(job.submitted.endpoint, job.submitted.lane, job.id)
    return ended
