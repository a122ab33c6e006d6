"""An error about one job ends that job, and never the role that met it."""

from __future__ import annotations

import logging

from events.decisions import GiveUp
from events.errors import HistoryGone, ServiceError
from events.log import JobWriter

logger = logging.getLogger(__name__)


def could_not_handle(error: Exception) -> str:
    """What the caller is told of an error that nobody foresaw. The log has the error itself."""
    return (
        f"The service could not handle this job ({type(error).__name__}). Submit it again; if that "
        "fails too, tell the operator its id."
    )


async def end_job(job_id: str, error: Exception, *, writer: JobWriter, action: str) -> None:
    """Log `error`, and end the job that it is about, if the job can be read at all.

    Raises what the log raises where it cannot be reached.
    """
    fields = {"action": action, "job_id": job_id}
    logger.error("job could not be handled", exc_info=error, extra=fields)
    try:
        job = await writer.load(job_id)
        if job is not None:
            await writer.execute(GiveUp(could_not_handle(error)), job)
    except HistoryGone:
        return
    except ServiceError:
        raise
    except Exception as unreadable:  # noqa: BLE001 - whatever its events hold
        fields["error"] = type(unreadable).__name__
        logger.warning("job could not be ended", extra=fields)
