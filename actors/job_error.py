"""Ends a job after an unexpected error about the job, so that other jobs continue."""

from __future__ import annotations

import logging

from engine.interface import is_machine_error
from events.bus.queues import QueueEntry
from events.decisions import WHAT_TO_DO, GiveUp
from events.errors import HistoryGone, JobOfLaterVersion, JobUnreadable
from events.log import JobWriter

logger = logging.getLogger(__name__)


def could_not_handle(error: Exception) -> str:
    """Return the message for the caller. It names only the type of the error."""
    return f"The service could not handle this job ({type(error).__name__}). {WHAT_TO_DO}"


async def give_up_after_error(
    job_id: str, error: Exception, *, writer: JobWriter, action: str
) -> bool:
    """Log `error` and end the job. Returns whether the entry of the job can be acknowledged.

    Returns False if only a later version can read the job, or if the machine failed. The entry is
    then delivered again after its lease. A damaged job is not ended, because the unreadable event
    may have changed its state.

    Raises LogUnavailable, LogFull, OutcomeUnknown, ReadTimeout.
    """
    fields = {"action": action, "job_id": job_id}
    if isinstance(error, JobOfLaterVersion):
        # The projection also logs this job.
        logger.debug("a job waits for a later version", extra=fields)
        return False
    if is_machine_error(error):
        logger.error("the machine failed", exc_info=error, extra=fields)
        return False
    logger.error("a job could not be handled", exc_info=error, extra=fields)
    try:
        job = await writer.load(job_id)
        if job is not None:
            await writer.execute(GiveUp(could_not_handle(error)), job)
    except HistoryGone:
        return True
    except JobUnreadable as unreadable:
        logger.warning("a job could not be ended", extra={**fields, "error": str(unreadable)})
        return not isinstance(unreadable, JobOfLaterVersion)
    return True


async def fail_job_and_ack(
    entry: QueueEntry, error: Exception, *, writer: JobWriter, action: str
) -> bool:
    """Call `give_up_after_error`. If it returns True, acknowledge the entry. Returns its result."""
    is_done = await give_up_after_error(entry.job_id, error, writer=writer, action=action)
    if is_done:
        await entry.ack()
    return is_done
