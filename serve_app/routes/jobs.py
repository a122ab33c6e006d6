"""Routes of the caller's jobs: list, show, cancel, erase."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from events.decisions import Cancel, Erase
from events.ids import ENDPOINT_ID, is_job_id
from events.job import Job
from events.job_cost import JobCost
from events.result import (
    ImageResult,
    JobError,
    ResultResponse,
    State,
    Status,
    error_of,
    image_count,
    images_of,
    message_of,
    state_of,
    status_of,
)
from events.types import Cancelled, Flavour
from serve_app.api_error import ApiError
from serve_app.auth import CancelKey, ReadKey
from serve_app.job_end import end_job
from serve_app.job_state import owned_job, owned_or_erased_job
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep
from serve_app.routes.results import Inline, Wait, result_answer, shown_result

router = APIRouter(
    prefix="/v1/jobs",
    tags=["jobs"],
    responses=documented(400, 401, 403, 500, 503),
)


_SHOWN_IMAGES = 4
"""Of each job of a page: 200 jobs may have 51,200."""


class JobSummary(BaseModel):
    request_id: str
    flavour: Flavour
    endpoint: str
    status: Status = Field(description="0 running, 1 completed, 2 failed")
    state: State = Field(description="Whether it waits or runs, and how it ended")
    message: str | None = Field(
        default=None, description="Why it failed; may name what the request names"
    )
    error: JobError | None = Field(default=None, description="The same for programs")
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    retry_of: str | None = Field(
        default=None,
        description="The failed job that this one repeats, submitted again by an administrator",
    )


class ListedJob(JobSummary):
    results: tuple[ImageResult, ...] | None = Field(
        default=None,
        description=f"Its first {_SHOWN_IMAGES} images; absent unless they are asked for",
    )
    result_count: int | None = Field(
        default=None, description="How many images it has in all; absent as `results` is"
    )


class JobPage(BaseModel):
    jobs: list[ListedJob] = Field(description="Newest first")
    next_cursor: str | None = Field(
        default=None, description="`cursor` of the next page; absent on the last"
    )


class Timings(BaseModel):
    """Seconds; absent while not over."""

    queued_s: float | None = Field(default=None, description="From accepted to started")
    running_s: float | None = Field(default=None, description="From started to ended")
    total_s: float | None = Field(default=None, description="From accepted to ended")


class JobDetail(JobSummary):
    request: dict[str, Any] = Field(description="As recorded: what a run needs, its seeds drawn")
    result: ResultResponse
    attempts: int
    last_failure: str | None = None
    cancel_requested: bool
    callback_url: str | None = None
    callback_events: list[str] | None = Field(
        default=None, description="What it is told of before the end"
    )
    input_files: dict[str, str] | None = Field(
        default=None, description="Digests of the uploads that it takes, by their names"
    )
    cost: JobCost | None = Field(
        default=None, description="As estimated when it was accepted; absent on older jobs"
    )
    timings: Timings


class EraseAnswer(BaseModel):
    erased: bool = Field(description="false where something is still to be removed")


class CancelAnswer(BaseModel):
    cancelled: bool = Field(description="false where the job had ended before, in another way")


@router.get("", response_model_exclude_none=True)
async def list_jobs(
    key: ReadKey,
    replica: ReplicaDep,
    *,
    status: Annotated[Status | None, Query(description="0, 1 or 2")] = None,
    flavour: Flavour | None = None,
    endpoint: Annotated[str | None, Query(pattern=ENDPOINT_ID)] = None,
    results: Annotated[bool, Query(description="Show the first images of each job, too")] = False,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
) -> JobPage:
    """The caller's jobs, newest first. A job shows here moments after it was accepted."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(400, "invalid_request", "The cursor is not one that was answered here.")
    found = await replica.services.read_model.jobs(
        key.owner,
        status=status,
        flavour=flavour,
        endpoint=endpoint,
        limit=limit + 1,
        before=cursor,
    )
    page = found[:limit]
    next_cursor = page[-1].id if len(found) > limit else None
    url_for = replica.services.url_for
    jobs = [
        ListedJob(
            **summary(job).model_dump(),
            results=images_of(job, url_for, most=_SHOWN_IMAGES) if results else None,
            result_count=image_count(job) if results else None,
        )
        for job in page
    ]
    return JobPage(jobs=jobs, next_cursor=next_cursor)


@router.get("/{id}", response_model_exclude_none=True, responses=documented(404))
async def show_job(id: str, key: ReadKey, replica: ReplicaDep) -> JobDetail:
    """Request, result, attempts and timings of a job."""
    job = await owned_job(replica.services, id, key)
    submitted = job.submitted
    files = submitted.input_files or {}
    return JobDetail(
        **summary(job).model_dump(),
        request=submitted.request,
        result=await shown_result(replica, job),
        attempts=job.attempts,
        last_failure=job.last_failure,
        cancel_requested=job.cancel_requested,
        callback_url=submitted.callback_url,
        callback_events=list(submitted.callback_events or ()) or None,
        input_files={name: file.digest for name, file in files.items()} or None,
        cost=submitted.cost,
        timings=timings(job),
    )


@router.get(
    "/{id}/result",
    response_model=None,
    responses={
        200: {"model": ResultResponse, "description": "The job as it is now"},
        **documented(404),
    },
)
async def job_result(
    request: Request,
    id: str,
    key: ReadKey,
    replica: ReplicaDep,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """The state of a job of either flavour."""
    return await result_answer(
        replica, request, key, id, flavour=None, wait_s=wait, is_inline=inline
    )


@router.post("/{id}/cancel", responses=documented(404))
async def cancel_job(id: str, key: CancelKey, replica: ReplicaDep) -> CancelAnswer:
    """Stop a job. Repeating it changes nothing."""
    services = replica.services
    job = await owned_job(services, id, key)
    end = (await end_job(services, Cancel(), job)).end
    return CancelAnswer(cancelled=end is None or isinstance(end, Cancelled))


@router.delete("/{id}", responses={202: {"model": EraseAnswer}, **documented(404)})
async def erase_job(
    id: str, key: CancelKey, replica: ReplicaDep, response: Response
) -> EraseAnswer:
    """Erase prompt and images of a job, for good; one that has not ended is cancelled first.

    From then on the job is not found. 202: something could not be removed yet and will be.
    Repeating it changes nothing.
    """
    services = replica.services
    job = await owned_or_erased_job(services, id, key)
    erased = await services.removal.hide(await end_job(services, Erase(), job))
    response.status_code = 200 if erased else 202
    return EraseAnswer(erased=erased)


def summary(job: Job) -> JobSummary:
    return JobSummary(
        request_id=job.id,
        flavour=job.submitted.flavour,
        endpoint=job.submitted.endpoint,
        status=status_of(job.end),
        state=state_of(job),
        message=message_of(job.end),
        error=error_of(job.end),
        created_at=job.submitted_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        retry_of=job.submitted.retry_of,
    )


def timings(job: Job) -> Timings:
    return Timings(
        queued_s=_seconds(job.submitted_at, job.started_at),
        running_s=_seconds(job.started_at, job.ended_at),
        total_s=_seconds(job.submitted_at, job.ended_at),
    )


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return (end - start).total_seconds() if start and end else None
