"""Reads the state of a job: from its row where that is not behind the log, else from the log."""

from __future__ import annotations

from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout
from events.ids import is_job_id
from events.job import Job, fold, fold_readable
from events.store.records import ApiKey
from events.types import Flavour
from serve_app.refusals import JobNotFound, OtherFlavour
from serve_app.services import Services


async def current_job(services: Services, job_id: str, *, with_request: bool = True) -> Job | None:
    """None for an unknown job; else it as far as this version can read it, to be shown.

    Whoever needs nothing of its request says so: then that may be missing.

    Raises LogUnavailable, ReadTimeout, JobUnreadable where it has no row either, and
    DatabaseUnavailable where it may be archived.
    """
    row = await _row(services, job_id, with_request=with_request)
    if row is not None and row.end is not None:
        return row
    try:
        if row is not None and await _is_at_end_of_log(services, row):
            return row
        events = await services.log.read(job_id)
    except (LogUnavailable, ReadTimeout):
        if row is None:
            raise
        return row
    # Where nothing of it can be shown, the fold says why.
    return fold_readable(events) or row or fold(events)


async def ended_job(services: Services, job_id: str) -> Job | None:
    """The job of this id if it has ended; None where the log has all of it, or there is none.

    Whoever submits under an id that others may have used asks this first: an archived job has left
    the log, which would take another one under its id. Raises DatabaseUnavailable where only the
    database can tell, LogUnavailable.
    """
    try:
        row = await services.read_model.job(job_id)
    except DatabaseUnavailable:
        if await services.log.last(job_id) is None:
            raise
        return None
    return row if row is not None and row.end is not None else None


async def _row(services: Services, job_id: str, *, with_request: bool) -> Job | None:
    try:
        return await services.read_model.job(job_id, with_request=with_request)
    except DatabaseUnavailable:
        return None  # the log has it as well


async def _is_at_end_of_log(services: Services, row: Job) -> bool:
    """Whether every event that the log has of the job is in its row. Raises LogUnavailable."""
    last = await services.log.last(row.id)
    return last is not None and last.position == row.position


async def owned_job(
    services: Services,
    job_id: str,
    key: ApiKey,
    *,
    flavour: Flavour | None = None,
    with_request: bool = True,
) -> Job:
    """The job of this key's owner; `with_request` as for `current_job`.

    Raises JobNotFound alike for a job that is unknown, erased or of another owner, OtherFlavour,
    and what `current_job` raises.
    """
    job = await owned_or_erased_job(services, job_id, key, with_request=with_request)
    if job.erased:
        raise JobNotFound
    if flavour is not None and job.submitted.flavour is not flavour:
        raise OtherFlavour(job.submitted.flavour)
    return job


async def owned_or_erased_job(
    services: Services, job_id: str, key: ApiKey, *, with_request: bool = True
) -> Job:
    """The job of this key's owner, even if it is erased. Raises what `owned_job` raises."""
    known = is_job_id(job_id)
    job = await current_job(services, job_id, with_request=with_request) if known else None
    if job is None:
        raise JobNotFound
    if job.submitted.owner != key.owner:
        # Of an unknown job nothing is said while one of these is away.
        await services.read_model.job(job_id)
        await services.log.last(job_id)
        raise JobNotFound
    return job
