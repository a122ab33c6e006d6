"""Routes of every owner's jobs, for administrators: list, show, cancel, quarantine, resubmit.

They show no prompt, graph, picture, file name or callback address: what a job is and what it costs
is enough to stop it.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from events.decisions import Cancel, Quarantine
from events.ids import ENDPOINT_ID, is_job_id
from events.job import Job
from events.job_cost import JobCost
from events.result import Status
from events.store.records import ApiKey
from events.types import Cancelled, DeadLetter, Failed
from serve_app.acceptance.resubmission import resubmit
from serve_app.access.key_bodies import Name
from serve_app.api_error import ApiError
from serve_app.auth import AdminKey
from serve_app.job_end import end_job
from serve_app.job_state import current_job
from serve_app.openapi.error_responses import documented
from serve_app.openapi.request_bodies import model_body
from serve_app.refusals import JobNotFound
from serve_app.replica import ReplicaDep
from serve_app.routes.jobs import CancelAnswer, JobSummary, Timings, summary, timings
from serve_app.services import Services

logger = logging.getLogger(__name__)

router = APIRouter(
    prefix="/v1/admin/jobs",
    tags=["administration"],
    responses=documented(400, 401, 403, 500, 503),
)


class AdminJobSummary(JobSummary):
    owner: str
    key_id: str
    dead_letter: DeadLetter | None = Field(
        default=None, description="Why it is a dead letter; absent where it is none"
    )
    attempts: int
    dispatch_failures: int = Field(description="Actors that died before an attempt began")


class AdminJobPage(BaseModel):
    jobs: list[AdminJobSummary] = Field(description="Newest first")
    next_cursor: str | None = Field(
        default=None, description="`cursor` of the next page; absent on the last"
    )


class AdminJobDetail(AdminJobSummary):
    cost: JobCost | None = Field(
        default=None, description="Absent where the version that accepted it knew no costs"
    )
    request_bytes: int = Field(description="Of the recorded request, as JSON")
    images: int = Field(description="Asked for; 0 where only the run can tell")
    results: int = Field(description="Stored so far")
    result_bytes: int
    input_files: int = Field(description="Uploads that it takes")
    has_callback: bool
    actor: str | None = Field(default=None, description="Of the last attempt")
    last_failure: str | None = None
    cancel_requested: bool
    deadline: datetime
    timings: Timings


class QuarantineBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = Field(
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00-\x1f\x7f-\x9f]*$",
        description="Shown to the owner of the job",
    )


QUARANTINE_BODY = model_body(QuarantineBody, {"reason": "It keeps a device busy for hours."})


class QuarantineAnswer(BaseModel):
    quarantined: bool = Field(description="false where the job had ended before, in another way")


class ResubmitAnswer(BaseModel):
    request_id: str = Field(description="Of the new job")
    retry_of: str


@router.get("", response_model_exclude_none=True)
async def list_every_owners_jobs(
    admin: AdminKey,
    replica: ReplicaDep,
    *,
    owner: Annotated[Name | None, Query(description="This owner's alone")] = None,
    status: Annotated[Status | None, Query(description="0, 1 or 2")] = None,
    endpoint: Annotated[str | None, Query(pattern=ENDPOINT_ID)] = None,
    dead_letter: Annotated[
        list[DeadLetter] | None, Query(description="Dead letters of this kind; may be repeated")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
) -> AdminJobPage:
    """Jobs of all owners, newest first. A job shows here moments after it was accepted."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(400, "invalid_request", "The cursor is not one that was answered here.")
    found = await replica.services.read_model.every_owners_jobs(
        owner=owner,
        status=status,
        endpoint=endpoint,
        dead_letters=dead_letter or (),
        limit=limit + 1,
        before=cursor,
    )
    fields = {"action": "list_jobs", "by_key_id": admin.id}
    logger.info("jobs administered", extra=fields)
    next_cursor = found[limit - 1].id if len(found) > limit else None
    return AdminJobPage(jobs=[_summary(job) for job in found[:limit]], next_cursor=next_cursor)


@router.get("/{id}", response_model_exclude_none=True, responses=documented(404))
async def show_any_job(id: str, admin: AdminKey, replica: ReplicaDep) -> AdminJobDetail:
    """State, sizes and times of a job, without what it was asked for."""
    job = await _any_job(replica.services, id)
    _log("show", job, admin)
    submitted = job.submitted
    return AdminJobDetail(
        **_summary(job).model_dump(),
        cost=submitted.cost,
        request_bytes=len(json.dumps(submitted.request)),
        images=submitted.images,
        results=len(job.images),
        result_bytes=sum(image.size_bytes for image in job.images),
        input_files=len(submitted.input_files or ()),
        has_callback=submitted.callback_url is not None,
        actor=job.actor,
        last_failure=job.last_failure,
        cancel_requested=job.cancel_requested,
        deadline=job.deadline,
        timings=timings(job),
    )


@router.post("/{id}/cancel", responses=documented(404))
async def cancel_any_job(id: str, admin: AdminKey, replica: ReplicaDep) -> CancelAnswer:
    """Stop a job of any owner. Repeating it changes nothing."""
    services = replica.services
    job = await _any_job(services, id)
    _log("cancel", job, admin)
    end = (await end_job(services, Cancel(), job)).end
    return CancelAnswer(cancelled=end is None or isinstance(end, Cancelled))


@router.post(
    "/{id}/quarantine",
    responses=documented(404, 408, 413, 415),
    openapi_extra={"requestBody": QUARANTINE_BODY},
)
async def quarantine_job(
    id: str, request: Request, admin: AdminKey, replica: ReplicaDep
) -> QuarantineAnswer:
    """End a job at once, whoever runs it, and list it as a dead letter with the reason.

    Repeating it changes nothing.
    """
    services = replica.services
    body = await replica.bodies.model(request, admin.owner, QuarantineBody)
    job = await _any_job(services, id)
    _log("quarantine", job, admin, reason=body.reason)
    end = (await end_job(services, Quarantine(body.reason), job)).end
    is_quarantined = isinstance(end, Failed) and end.dead_letter is DeadLetter.QUARANTINED
    return QuarantineAnswer(quarantined=is_quarantined)


@router.post("/{id}/resubmit", status_code=202, responses=documented(404, 409))
async def resubmit_job(
    id: str, response: Response, admin: AdminKey, replica: ReplicaDep
) -> ResubmitAnswer:
    """Submit a failed job again, as a new job of the same owner. A repeat finds the same new job.

    The owner's limits do not hold for it.
    """
    job = await _any_job(replica.services, id)
    retry = await resubmit(replica.services, job)
    _log("resubmit", job, admin, retry_id=retry.id)
    response.headers["Location"] = f"{router.prefix}/{retry.id}"
    return ResubmitAnswer(request_id=retry.id, retry_of=job.id)


async def _any_job(services: Services, id: str) -> Job:
    """Raises JobNotFound for one that is unknown or erased."""
    job = await current_job(services, id) if is_job_id(id) else None
    if job is None or job.erased:
        raise JobNotFound
    return job


def _summary(job: Job) -> AdminJobSummary:
    end = job.end
    return AdminJobSummary(
        **summary(job).model_dump(),
        owner=job.submitted.owner,
        key_id=job.submitted.key_id,
        dead_letter=end.dead_letter if isinstance(end, Failed) else None,
        attempts=job.attempts,
        dispatch_failures=job.dispatch_failures,
    )


def _log(verb: str, job: Job, admin: ApiKey, **more: str) -> None:
    fields = {
        "action": f"{verb}_job",
        "job_id": job.id,
        "owner": job.submitted.owner,
        "by_key_id": admin.id,
    }
    logger.info("jobs administered", extra=fields | more)
