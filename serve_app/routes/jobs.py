"""Routes that list, show, cancel and erase the caller's jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from events.decisions import Cancel
from events.ids import ENDPOINT_ID, is_job_id
from events.job import Job
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
from events.types import Cancelled, Flavour, JobCost
from serve_app.auth import CancelKey, ReadKey
from serve_app.error_responses import ApiError
from serve_app.openapi.document import documented
from serve_app.replica import ReadingDep
from serve_app.routes.results import Inline, Wait, result_answer, shown_result

router = APIRouter(
    prefix="/v1/jobs",
    tags=["jobs"],
    responses=documented(400, 401, 403, 500, 503),
)


_SHOWN_IMAGES = 4
"""The most images that a page lists for one job. A page may have 200 jobs with 256 images each."""


class JobSummary(BaseModel):
    request_id: str
    flavour: Flavour
    endpoint: str
    status: Status = Field(description="0 running, 1 completed, 2 failed")
    state: State = Field(description="Whether the job waits or runs, or how it ended")
    message: str | None = Field(
        default=None,
        description="Why the job failed. The message may contain names from the request",
    )
    error: JobError | None = Field(default=None, description="Why the job failed, for programs")
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    retry_of: str | None = Field(
        default=None,
        description="The id of the failed job that an administrator submitted again as this job",
    )


class ListedJob(JobSummary):
    results: tuple[ImageResult, ...] | None = Field(
        default=None,
        description=f"The first {_SHOWN_IMAGES} images of the job; absent unless the request has "
        "`results=true`",
    )
    result_count: int | None = Field(
        default=None,
        description="The number of all images of the job; absent unless the request has "
        "`results=true`",
    )


class JobPage(BaseModel):
    jobs: list[ListedJob] = Field(description="Newest first")
    next_cursor: str | None = Field(
        default=None, description="The `cursor` of the next page; absent on the last page"
    )


class Timings(BaseModel):
    """Times in seconds. The time of a stage that has not ended is absent."""

    queued_s: float | None = Field(default=None, description="From acceptance to start")
    running_s: float | None = Field(default=None, description="From start to end")
    total_s: float | None = Field(default=None, description="From acceptance to end")


class JobDetail(JobSummary):
    request: dict[str, Any] = Field(
        description="The recorded request, with the random seeds that were chosen"
    )
    result: ResultResponse
    attempts: int
    last_failure: str | None = None
    cancel_requested: bool
    callback_url: str | None = None
    callback_events: list[str] | None = Field(
        default=None, description="The events before the end that send a callback"
    )
    input_files: dict[str, str] | None = Field(
        default=None, description="Digests of the uploads that the job uses, by name"
    )
    cost: JobCost | None = Field(
        default=None, description="The cost that was estimated at acceptance"
    )
    timings: Timings


class EraseAnswer(BaseModel):
    erased: bool = Field(
        description="Whether everything was removed. false: something could not be removed yet"
    )


class CancelAnswer(BaseModel):
    cancelled: bool = Field(
        description="Whether the job was cancelled. false: it had already ended in another way"
    )


@router.get("", response_model_exclude_none=True)
async def list_jobs(
    key: ReadKey,
    reading: ReadingDep,
    *,
    status: Annotated[Status | None, Query(description="0, 1 or 2")] = None,
    flavour: Flavour | None = None,
    endpoint: Annotated[str | None, Query(pattern=ENDPOINT_ID)] = None,
    results: Annotated[
        bool, Query(description="Whether to include the first images of each job")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
) -> JobPage:
    """List the caller's jobs, newest first. A new job appears shortly after its acceptance."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(
            400,
            "invalid_request",
            "The cursor is not valid. Use the `next_cursor` of an earlier answer.",
        )
    found = await reading.read_model.jobs(
        key.owner,
        status=status,
        flavour=flavour,
        endpoint=endpoint,
        limit=limit + 1,
        before=cursor,
    )
    page = found[:limit]
    next_cursor = page[-1].id if len(found) > limit else None
    url_for = reading.files.url_for
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
async def show_job(id: str, key: ReadKey, reading: ReadingDep) -> JobDetail:
    """Show the request, result, attempts and timings of a job."""
    job = await reading.jobs.owned(id, key)
    submitted = job.submitted
    files = submitted.input_files or {}
    return JobDetail(
        **summary(job).model_dump(),
        request=submitted.request,
        result=await shown_result(reading, job),
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
        200: {"model": ResultResponse, "description": "The present state of the job"},
        **documented(404),
    },
)
async def job_result(
    request: Request,
    id: str,
    key: ReadKey,
    reading: ReadingDep,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """Show the state and the result of a job of either flavour."""
    return await result_answer(
        reading, request, key, id, flavour=None, wait_s=wait, is_inline=inline
    )


@router.post("/{id}/cancel", responses=documented(404))
async def cancel_job(id: str, key: CancelKey, reading: ReadingDep) -> CancelAnswer:
    """Cancel a job. A repeated request changes nothing."""
    job = await reading.jobs.owned(id, key)
    end = (await reading.jobs.end(Cancel(), job)).end
    return CancelAnswer(cancelled=end is None or isinstance(end, Cancelled))


@router.delete("/{id}", responses={202: {"model": EraseAnswer}, **documented(404)})
async def erase_job(
    id: str, key: CancelKey, reading: ReadingDep, response: Response
) -> EraseAnswer:
    """Erase the prompt and the images of a job permanently. An open job is cancelled first. An
    erased job is not found any more. Status 202 means that a part could not be removed yet; the
    service removes this part later. A repeated request changes nothing.
    """
    job = await reading.jobs.owned_or_erased(id, key)
    erased = await reading.jobs.erase(job)
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
