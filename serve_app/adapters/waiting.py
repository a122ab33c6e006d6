"""Jobs whose callers wait for the pictures themselves."""

from __future__ import annotations

from fastapi import Request

from events.job import Job
from events.log import utc_now
from events.result import FailureCode
from events.store.records import ApiKey
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.adapters.credentials import adapter_caller
from serve_app.replica import Replica
from serve_app.routes.results import job_at_end

_OF_CALLER = {
    FailureCode.INVALID_INPUT,
    FailureCode.OUT_OF_MEMORY,
    FailureCode.MODEL_UNAVAILABLE,
    FailureCode.CANCELLED,
}


def failure_status(code: str) -> int:
    """The HTTP status of an answer whose job has failed for this reason."""
    return 400 if code in _OF_CALLER else 500


async def ended_job(
    replica: Replica, request: Request, key: ApiKey, wanted: GenerateRequest
) -> Job:
    """The job once it has ended, or as it is once its time here is over.

    Without an idempotency key nobody finds the job of a caller who hangs up: it is cancelled.
    Raises TooManyWaits, KeyRefused, and what `Acceptance.accept` raises.
    """
    services = replica.services
    began = utc_now()
    with replica.waits.hold(key.owner):
        job = await replica.acceptance.accept(wanted)
        replica.note_accepted(job, began=began)
        is_gone = True
        try:
            wait_s = services.adapter_settings.max_wait_s
            job = await job_at_end(services, request, key, job, wait_s=wait_s)
            is_gone = job.end is None and await request.is_disconnected()
        finally:
            if is_gone and wanted.idempotency_key is None:
                replica.withdrawals.schedule(job.id)
    await adapter_caller(request)  # the key may have been revoked meanwhile
    return job
