"""Routes with which administrators list, show, cancel, quarantine and resubmit jobs of all owners.

The routes show no prompt, graph, image, file name or callback address.
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
from events.result import Status
from events.store.records import ApiKey
from events.types import Cancelled, DeadLetter, Failed, JobCost
from serve_app.auth import AdminKey
from serve_app.error_responses import ApiError
from serve_app.key_schemas import StoredName
from serve_app.openapi.document import documented, model_body
from serve_app.refusals import JobNotFound
from serve_app.replica import Administration, AdministrationDep
from serve_app.routes.jobs import CancelAnswer, JobSummary, Timings, summary, timings

logger = logging.getLogger(__name__)

blocked_router = APIRouter(
    prefix="/v1/admin/jobs/blocked",
    tags=["administration"],
    responses=documented(400, 401, 403, 500, 503),
)


_LAST_POSITION = 2**63 - 1
"""The largest value of a database column for an offset."""

router = APIRouter(
    prefix="/v1/admin/jobs",
    tags=["administration"],
    responses=documented(400, 401, 403, 500, 503),
)


class BlockedJob(BaseModel):
    request_id: str
    position: int = Field(
        description="Offset in the event log of the first event that is not in the read model"
    )
    why: str
    since: datetime


class BlockedJobPage(BaseModel):
    jobs: list[BlockedJob] = Field(description="In the order of the event log")
    count: int = Field(description="The number of all blocked jobs")
    next_cursor: int | None = Field(
        default=None, description="The `cursor` of the next page; absent on the last page"
    )


@blocked_router.get("", response_model_exclude_none=True)
async def list_blocked_jobs(
    admin: AdminKey,
    administration: AdministrationDep,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[
        int, Query(ge=0, le=_LAST_POSITION, description="`next_cursor` of the previous page")
    ] = 0,
) -> BlockedJobPage:
    """List blocked jobs: jobs with an event that the running version cannot read, or with a state
    that the database cannot store. A blocked job continues when a version that can read its events
    is running.
    """
    blocked = administration.read_model.blocked
    found = await blocked.page(after=cursor, limit=limit + 1)
    fields = {"action": "list_jobs", "by_key_id": admin.id}
    logger.info("jobs administered", extra=fields)
    page = found[:limit]
    return BlockedJobPage(
        jobs=[
            BlockedJob(request_id=s.job_id, position=s.position, why=s.why, since=s.since)
            for s in page
        ],
        count=await blocked.count(),
        next_cursor=page[-1].position if len(found) > limit else None,
    )


class AdminJobSummary(JobSummary):
    owner: str
    key_id: str
    dead_letter: DeadLetter | None = Field(
        default=None, description="Why the job is a dead letter; absent if it is none"
    )
    attempts: int
    dispatch_failures: int = Field(
        description="The number of job actors that died before an attempt began"
    )


class AdminJobPage(BaseModel):
    jobs: list[AdminJobSummary] = Field(description="Newest first")
    next_cursor: str | None = Field(
        default=None, description="The `cursor` of the next page; absent on the last page"
    )


class AdminJobDetail(AdminJobSummary):
    cost: JobCost | None = Field(
        default=None, description="Absent for jobs without a recorded cost"
    )
    request_bytes: int = Field(description="Size of the recorded request as JSON, in bytes")
    images: int = Field(description="The number of images; 0 if it is not known before the run")
    results: int = Field(description="The number of results stored so far")
    result_bytes: int
    input_files: int = Field(description="The number of uploads that the job uses")
    has_callback: bool
    actor: str | None = Field(default=None, description="The job actor of the last attempt")
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
        description="The reason, which the owner of the job sees",
    )


QUARANTINE_BODY = model_body(QuarantineBody, {"reason": "It keeps a device busy for hours."})


class QuarantineAnswer(BaseModel):
    quarantined: bool = Field(
        description="Whether the job was quarantined. false: it had already ended in another way"
    )


class ResubmitAnswer(BaseModel):
    request_id: str = Field(description="The id of the new job")
    retry_of: str


@router.get("", response_model_exclude_none=True)
async def list_every_owners_jobs(
    admin: AdminKey,
    administration: AdministrationDep,
    *,
    owner: Annotated[StoredName | None, Query(description="Only the jobs of this owner")] = None,
    status: Annotated[Status | None, Query(description="0, 1 or 2")] = None,
    endpoint: Annotated[str | None, Query(pattern=ENDPOINT_ID)] = None,
    dead_letter: Annotated[
        list[DeadLetter] | None,
        Query(description="Only dead letters of this kind; may be repeated"),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
) -> AdminJobPage:
    """List jobs of all owners, newest first. A new job appears shortly after its acceptance."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(
            400,
            "invalid_request",
            "The cursor is not valid. Use the `next_cursor` of an earlier answer.",
        )
    found = await administration.read_model.every_owners_jobs(
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
async def show_any_job(
    id: str, admin: AdminKey, administration: AdministrationDep
) -> AdminJobDetail:
    """Show the state, sizes and times of a job, without its request."""
    job = await _any_job(administration, id)
    _log("show", job, admin)
    submitted = job.submitted
    return AdminJobDetail(
        **_summary(job).model_dump(),
        cost=submitted.cost,
        request_bytes=len(json.dumps(submitted.request)),
        images=submitted.images,
        results=len(job.images),
        result_bytes=sum(file.size_bytes for file in job.files),
        input_files=len(submitted.input_files or ()),
        has_callback=submitted.callback_url is not None,
        actor=job.actor,
        last_failure=job.last_failure,
        cancel_requested=job.cancel_requested,
        deadline=job.deadline,
        timings=timings(job),
    )


@router.post("/{id}/cancel", responses=documented(404))
async def cancel_any_job(
    id: str, admin: AdminKey, administration: AdministrationDep
) -> CancelAnswer:
    """Cancel a job of any owner. A repeated request changes nothing."""
    job = await _any_job(administration, id)
    _log("cancel", job, admin)
    end = (await administration.jobs.end(Cancel(), job)).end
    return CancelAnswer(cancelled=end is None or isinstance(end, Cancelled))


@router.post(
    "/{id}/quarantine",
    responses=documented(404, 408, 413, 415),
    openapi_extra={"requestBody": QUARANTINE_BODY},
)
async def quarantine_job(
    id: str, request: Request, admin: AdminKey, administration: AdministrationDep
) -> QuarantineAnswer:
    """End a job at once, even if a worker runs it, and list it as a dead letter with the reason.
    A repeated request changes nothing.
    """
    body = await administration.bodies.model(request, admin.owner, QuarantineBody)
    job = await _any_job(administration, id)
    _log("quarantine", job, admin, reason=body.reason)
    end = (await administration.jobs.end(Quarantine(body.reason), job)).end
    is_quarantined = isinstance(end, Failed) and end.dead_letter is DeadLetter.QUARANTINED
    return QuarantineAnswer(quarantined=is_quarantined)


@router.post("/{id}/resubmit", status_code=202, responses=documented(404, 409))
async def resubmit_job(
    id: str, response: Response, admin: AdminKey, administration: AdministrationDep
) -> ResubmitAnswer:
    """Submit a failed job again, as a new job of the same owner. A repeated request returns the
    same new job. The limits of the owner do not apply.
    """
    job = await _any_job(administration, id)
    retry = await administration.resubmission.resubmit(job)
    _log("resubmit", job, admin, retry_id=retry.id)
    response.headers["Location"] = f"{router.prefix}/{retry.id}"
    return ResubmitAnswer(request_id=retry.id, retry_of=job.id)


async def _any_job(administration: Administration, id: str) -> Job:
    """Return the job. Raises JobNotFound if it is unknown or erased."""
    job = await administration.jobs.current(id) if is_job_id(id) else None
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
