"""Routes that list, show, cancel and erase the caller's jobs, and show their results.

With `wait`, the answer with a result is delayed until the end of the job.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from events.decisions import Cancel
from events.delivery import Delivery, fold_delivery
from events.errors import DatabaseUnavailable, HistoryBroken, LogUnavailable, ReadTimeout
from events.ids import ENDPOINT_ID, is_job_id
from events.job import Job, is_readable
from events.log import Subscription
from events.result import (
    ImageResult,
    JobError,
    ResultResponse,
    State,
    Status,
    UrlFor,
    error_of,
    image_count,
    images_of,
    message_of,
    result_of,
    state_of,
    status_of,
)
from events.store.records import ApiKey
from events.types import Cancelled, ComfyUIServer, Completed, End, Flavour, ImageStored, JobCost
from serve_app.answers import json_answer
from serve_app.auth import CancelKey, ReadKey, caller
from serve_app.error_responses import ApiError
from serve_app.openapi.document import documented, operation_id
from serve_app.replica import JobAccess, JobAccessDep
from serve_app.routes.direct_route import DirectRoute
from serve_app.stored_file import StoredFileResponse, base64_of
from settings.constant import constant
from settings.http import MAX_WAIT_S
from storage.images import ImageNotFound, ImageStore, ImageStoreError

_MAX_INLINE_BYTES = constant("MAX_INLINE_BYTES", 4 * 1024**2)
"""The most bytes of images inside one answer. Further images have only a URL."""
_SLICE_S = 1.0
"""Seconds between two checks of whether the caller of a waiting request is still connected."""
_REREAD_S = 5.0
"""Seconds between two reads of the job by a waiting request. A subscription may lose messages."""
_ENDS = get_args(End)
_SHOWN_IMAGES = 4
"""The most images that a page lists for one job. A page may have 200 jobs with 256 images each."""

router = APIRouter(
    prefix="/v1/jobs",
    tags=["jobs"],
    responses=documented(400, 401, 403, 500, 503),
)

results_router = APIRouter(
    tags=["results"],
    route_class=DirectRoute,
    generate_unique_id_function=operation_id,
    responses={
        200: {"model": ResultResponse, "description": "The present state of the job"},
        **documented(400, 401, 403, 404, 500, 503),
    },
)


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
    comfyui: ComfyUIServer | None = Field(
        default=None, description="The ComfyUI server of the last attempt"
    )
    cost: JobCost | None = Field(
        default=None, description="The cost that was estimated at acceptance"
    )
    inputs: dict[str, Any] | None = Field(
        default=None, description="The values of the inputs of a named workflow"
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


RequestId = Annotated[
    str, Query(description="The id of the job, from the answer to the generate request")
]
Wait = Annotated[
    float,
    Query(
        ge=0,
        allow_inf_nan=False,
        description="Seconds to wait for the end of the job. The service limits this time, to 60 "
        "seconds by default",
    ),
]
Inline = Annotated[
    bool,
    Query(
        description="Whether the answer also contains the image files as base64 in `data`. It "
        "contains the first files, by default up to 4 MiB together"
    ),
]


@router.get("", response_model=JobPage)
async def list_jobs(
    key: ReadKey,
    access: JobAccessDep,
    *,
    status: Annotated[Status | None, Query(description="0, 1 or 2")] = None,
    flavour: Flavour | None = None,
    endpoint: Annotated[str | None, Query(pattern=ENDPOINT_ID)] = None,
    results: Annotated[
        bool, Query(description="Whether to include the first images of each job")
    ] = False,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
) -> Response:
    """List the caller's jobs, newest first. A new job appears shortly after its acceptance."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(
            400,
            "invalid_request",
            "The cursor is not valid. Use the `next_cursor` of an earlier answer.",
        )
    async with access.list_turns.acquire(key.owner):
        found = await access.read_model.jobs(
            key.owner,
            status=status,
            flavour=flavour,
            endpoint=endpoint,
            limit=limit + 1,
            before=cursor,
        )
        url_for = access.files.url_for if results else None
        return await json_answer(lambda: _page(found, limit, url_for), exclude_none=True)


def _page(found: Sequence[Job], limit: int, url_for: UrlFor | None) -> JobPage:
    """Return a page of the first `limit` jobs. The jobs have results if `url_for` is given."""
    page = found[:limit]
    jobs = [
        ListedJob(
            **summary(job).model_dump(),
            results=images_of(job, url_for, most=_SHOWN_IMAGES) if url_for else None,
            result_count=image_count(job) if url_for else None,
        )
        for job in page
    ]
    return JobPage(jobs=jobs, next_cursor=page[-1].id if len(found) > limit else None)


@router.get("/{id}", response_model=JobDetail, responses=documented(404))
async def show_job(id: str, key: ReadKey, access: JobAccessDep) -> Response:
    """Show the request, result, attempts and timings of a job."""
    async with access.list_turns.acquire(key.owner):
        job = await access.jobs.owned(id, key)
        result = await shown_result(access, job)
        return await json_answer(lambda: _detail(job, result), exclude_none=True)


def _detail(job: Job, result: ResultResponse) -> JobDetail:
    submitted = job.submitted
    files = submitted.input_files or {}
    return JobDetail(
        **summary(job).model_dump(),
        request=submitted.request,
        result=result,
        attempts=job.attempts,
        last_failure=job.last_failure,
        cancel_requested=job.cancel_requested,
        callback_url=submitted.callback_url,
        callback_events=list(submitted.callback_events or ()) or None,
        input_files={name: file.digest for name, file in files.items()} or None,
        cost=submitted.cost,
        comfyui=job.comfyui,
        inputs=None if job.submitted.workflow is None else job.submitted.workflow.inputs,
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
    access: JobAccessDep,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """Show the state and the result of a job of either flavour."""
    return await result_answer(
        access, request, key, id, flavour=None, wait_s=wait, is_inline=inline
    )


@router.post("/{id}/cancel", responses=documented(404))
async def cancel_job(id: str, key: CancelKey, access: JobAccessDep) -> CancelAnswer:
    """Cancel a job. A repeated request changes nothing."""
    job = await access.jobs.owned(id, key)
    end = (await access.jobs.end(Cancel(), job)).end
    return CancelAnswer(cancelled=end is None or isinstance(end, Cancelled))


@router.delete("/{id}", responses={202: {"model": EraseAnswer}, **documented(404)})
async def erase_job(
    id: str, key: CancelKey, access: JobAccessDep, response: Response
) -> EraseAnswer:
    """Erase the prompt and the images of a job permanently. An open job is cancelled first. An
    erased job is not found any more. Status 202 means that a part could not be removed yet; the
    service removes this part later. A repeated request changes nothing.
    """
    job = await access.jobs.owned_or_erased(id, key)
    erased = await access.jobs.erase(job)
    response.status_code = 200 if erased else 202
    return EraseAnswer(erased=erased)


@results_router.get("/api/v1/workflow/result", response_model=None)
@results_router.get("/workflow/v1/result", response_model=None)
async def workflow_result(
    request: Request,
    key: ReadKey,
    access: JobAccessDep,
    request_id: RequestId,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """Show the state and the result of a workflow job."""
    flavour = Flavour.WORKFLOW
    return await result_answer(
        access, request, key, request_id, flavour=flavour, wait_s=wait, is_inline=inline
    )


@results_router.get("/api/v1/diffusion/result", response_model=None)
@results_router.get("/diffusion/v1/result", response_model=None)
async def diffusion_result(
    request: Request,
    key: ReadKey,
    access: JobAccessDep,
    request_id: RequestId,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """Show the state and the result of a diffusion job."""
    flavour = Flavour.DIFFUSION
    return await result_answer(
        access, request, key, request_id, flavour=flavour, wait_s=wait, is_inline=inline
    )


async def result_answer(
    access: JobAccess,
    request: Request,
    key: ApiKey,
    request_id: str,
    *,
    flavour: Flavour | None,
    wait_s: float,
    is_inline: bool,
) -> Response:
    """Build the answer with the state of a job. If `flavour` is given, the job must have it."""
    job = await access.jobs.owned(request_id, key, flavour=flavour, with_request=False)
    wait_s = min(wait_s, MAX_WAIT_S)
    if job.end is None and wait_s > 0:
        with access.waits.hold(key.owner):
            job = await job_at_end(access, request, key, job, wait_s=wait_s)
        # The key is checked again, because it may have been revoked during the wait.
        await caller(request)
    result = await shown_result(access, job)
    headers = {"Cache-Control": "no-store"} | server_timing(job)
    if not is_inline:
        return Response(result.body(), headers=headers, media_type="application/json")
    return await inline_result(
        result,
        job.images,
        access.files.images,
        headers=headers,
    )


async def shown_result(access: JobAccess, job: Job) -> ResultResponse:
    """Return the result, with the progress of a running job or the position of a waiting job."""
    delivery = await _delivery(access, job)
    result = result_of(job, access.files.url_for, delivery=delivery)
    if job.end is not None:
        return result
    if job.started_at is None:
        place = await access.live.queue_positions.of(job)
        return result if place is None else result.model_copy(update=place.as_members())
    progress = access.live.progress.get(job.id)
    return result.model_copy(update={"progress": progress and progress.fraction})


async def _delivery(access: JobAccess, job: Job) -> Delivery | None:
    """Return the state of the presigned uploads of a job; None if the job has none."""
    if not job.submitted.image_puts:
        return None
    if job.end is None:
        return Delivery()
    try:
        events = await access.deliveries.read(job.id)
    except (DatabaseUnavailable, LogUnavailable, ReadTimeout, HistoryBroken, ImageStoreError):
        return Delivery()  # The result is shown even if the delivery cannot be read.
    return fold_delivery(takewhile(is_readable, events))


async def job_at_end(
    access: JobAccess, request: Request, key: ApiKey, job: Job, *, wait_s: float
) -> Job:
    """Wait until the job ends, `wait_s` is over, or the caller disconnects. Returns the job."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    try:
        # Subscribe before reading the job, so that no event is missed.
        async with access.jobs.log.watch(job.id) as subscription:
            job = await access.jobs.owned(job.id, key, with_request=False)
            while job.end is None and (left_s := deadline - loop.time()) > 0:
                if await _disconnected(request, subscription, for_s=min(left_s, _REREAD_S)):
                    break
                job = await access.jobs.owned(job.id, key, with_request=False)
    except (LogUnavailable, ReadTimeout):
        return job
    return job


async def _disconnected(request: Request, subscription: Subscription, *, for_s: float) -> bool:
    """Wait for the end of the job, at most `for_s`. Return True if the caller disconnects first."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + for_s
    while (left_s := deadline - loop.time()) > 0:
        event = await subscription.next(min(left_s, _SLICE_S))
        if event is not None and isinstance(event.data, _ENDS):
            return False
        if event is None and await request.is_disconnected():
            return True
    return False


def server_timing(job: Job) -> dict[str, str]:
    """Return the header `Server-Timing` with stages in milliseconds, if they were measured."""
    if not isinstance(job.end, Completed) or job.end.timing is None:
        return {}
    if job.started_at is None or job.ended_at is None:
        return {}
    queue_s = (job.started_at - job.submitted_at).total_seconds()
    total_s = (job.ended_at - job.submitted_at).total_seconds()
    times_s = {"queue": queue_s, **job.end.timing.stage_s, "total": total_s}
    metrics = [f"{name};dur={1000 * seconds:.1f}" for name, seconds in times_s.items()]
    if (rows := job.end.timing.rows_per_call) is not None:
        metrics.append(f'batch;desc="{rows:g} rows a call"')
    return {"Server-Timing": ", ".join(metrics)}


async def inline_result(
    result: ResultResponse,
    images: Sequence[ImageStored],
    store: ImageStore,
    *,
    headers: Mapping[str, str],
) -> Response:
    """Build the answer with a result that contains its first images, up to `_MAX_INLINE_BYTES`.

    Only one part of one file is in memory, however slowly the client reads. Raises
    ImageStoreUnavailable.
    """
    chosen = [image for image in _first(images, _MAX_INLINE_BYTES) if await _is_there(store, image)]
    markers = {image.index: secrets.token_hex(16) for image in chosen}
    items = tuple(
        item.model_copy(update={"data": markers.get(index)})
        for index, item in enumerate(result.results)
    )
    body = result.model_copy(update={"results": items}).body()
    texts = _texts_between(body, [markers[image.index].encode() for image in chosen])
    length = sum(map(len, texts)) + sum(_base64_length(image.size_bytes) for image in chosen)
    more = {
        "Content-Length": str(length),
        # This header prevents compression, which saves little in base64 of pixels.
        "Content-Encoding": "identity",
    }
    parts = _parts(texts, chosen, store)
    return StoredFileResponse(
        parts,
        200,
        {**headers, **more},
        media_type="application/json",
    )


def _first(images: Sequence[ImageStored], max_bytes: int) -> list[ImageStored]:
    first = []
    for image in images:
        max_bytes -= image.size_bytes
        if max_bytes < 0:
            break
        first.append(image)
    return first


async def _is_there(store: ImageStore, image: ImageStored) -> bool:
    try:
        return await store.size(image.key) == image.size_bytes
    except ImageNotFound:
        return False


def _texts_between(body: bytes, markers: Sequence[bytes]) -> list[bytes]:
    texts = []
    for marker in markers:
        text, _, body = body.partition(marker)
        texts.append(text)
    return [*texts, body]


def _base64_length(size_bytes: int) -> int:
    return -(-size_bytes // 3) * 4


async def _parts(
    texts: Sequence[bytes], images: Sequence[ImageStored], store: ImageStore
) -> AsyncGenerator[bytes]:
    """Yield each image in base64 between two texts. Raises ImageStoreError."""
    for text, image in zip(texts, images, strict=False):
        yield text
        async for part in base64_of(store, image):
            yield part
    yield texts[-1]


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
