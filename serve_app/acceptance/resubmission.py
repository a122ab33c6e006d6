"""Submits a failed job again."""

from __future__ import annotations

from events.decisions import Submit
from events.ids import derived_id
from events.job import Job
from events.log import utc_now
from events.types import Failed
from serve_app.endpoints.used import require_open
from serve_app.job_state import ended_job
from serve_app.refusals import JobNotResubmittable
from serve_app.services import Services


async def resubmit(services: Services, job: Job) -> Job:
    """A new job with the request, owner, key and callback of `job`; a repeat finds the same one.

    Nothing is checked again: its worker does that, by the terms of the job. The owner's limits do
    not hold for it. An endpoint of its id that is another owner's by now is another endpoint.

    Raises JobNotResubmittable, EndpointNotFound, EndpointDraining, LogUnavailable, LogFull,
    OutcomeUnknown, ReadTimeout, DatabaseUnavailable.
    """
    submitted = job.submitted
    if not isinstance(job.end, Failed):
        raise JobNotResubmittable
    endpoint = await services.endpoints.get(submitted.endpoint)
    is_other = endpoint is not None and endpoint.owner not in {None, submitted.owner}
    require_open(None if is_other else endpoint)
    # Their files are kept for as long as the new job may need them.
    await services.uploads.use(submitted.owner, list(submitted.input_files or ()), utc_now())
    retry = submitted.model_copy(update={"retry_of": job.id})
    retry_id = _retry_id(services.secret, job)
    again = await ended_job(services, retry_id)
    if again is None:
        outcome = await services.writer.submit(retry_id, Submit(retry), traceparent=job.traceparent)
        assert outcome.job is not None  # it was added, or it was there
        again = outcome.job
    if again.erased:
        raise JobNotResubmittable("It was submitted again, and that job was erased.")
    return again


def _retry_id(secret: bytes, job: Job) -> str:
    """No caller's idempotency key gives it: those have no control characters."""
    return derived_id(secret, job.submitted.owner, f"\0retry of {job.id}")
