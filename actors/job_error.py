"""An error about one job ends that job, and never the role that met it."""

from __future__ import annotations

import logging

from engine.machine_error import is_machine_error
from events.decisions import WHAT_TO_DO, GiveUp
from events.errors import HistoryGone, JobOfLaterVersion, JobUnreadable
from events.log import JobWriter

logger = logging.getLogger(__name__)


def could_not_handle(error: Exception) -> str:
    """What the caller is told of an error that nobody foresaw. The log has the error itself."""
    return f"The service could not handle this job ({type(error).__name__}). {WHAT_TO_DO}"


async def end_job(job_id: str, error: Exception, *, writer: JobWriter, action: str) -> bool:
    """Log `error`, and end the job that it is about. True where nothing more is to be done for it.

    False where a later version can read the job, which is left to it, and where the machine failed:
    then its entry comes again after its lease. One that is damaged is not
    ended either: nobody can say what the event that is lost had made of it.

    Raises what the log raises where it cannot be reached.
    """
    fields = {"action": action, "job_id": job_id}
    if isinstance(error, JobOfLaterVersion):
        logger.debug("job is left to a later version", extra=fields)  # the projection tells of it
        return False
    if is_machine_error(error):
        logger.error("the machine failed", exc_info=error, extra=fields)
        return False
    logger.error("job could not be handled", exc_info=error, extra=fields)
    try:
        job = await writer.load(job_id)
        if job is not None:
            await writer.execute(GiveUp(could_not_handle(error)), job)
    except HistoryGone:
        return True
    except JobUnreadable as unreadable:
        logger.warning("job could not be ended", extra={**fields, "error": str(unreadable)})
        return not isinstance(unreadable, JobOfLaterVersion)
    return True
