"""Routes that show results of both flavours. With `wait`, the answer is delayed until the end."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import takewhile
from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request, Response

from events.delivery import Delivery, fold_delivery
from events.errors import DatabaseUnavailable, HistoryBroken, LogUnavailable, ReadTimeout
from events.job import Job, is_readable
from events.log import Subscription
from events.result import ResultResponse, result_of
from events.store.records import ApiKey
from events.types import Completed, End, Flavour, ImageStored
from serve_app.auth import ReadKey, caller
from serve_app.openapi.document import documented, operation_id
from serve_app.replica import Reading, ReadingDep
from serve_app.routes.direct_route import DirectRoute
from serve_app.stored_file import PartedAnswer, base64_of
from settings.constant import constant
from settings.http import MAX_WAIT_S
from storage.images import ImageNotFound, ImageStore, ImageStoreError

_MAX_BYTES = constant("MAX_INLINE_BYTES", 4 * 1024**2)
"""The most bytes of images inside one answer. Further images have only a URL."""
_SLICE_S = 1.0
"""Seconds between two checks of whether the caller of a waiting request is still connected."""
_REREAD_S = 5.0
"""Seconds between two reads of the job by a waiting request. A subscription may lose messages."""
_ENDS = get_args(End)

router = APIRouter(
    tags=["results"],
    route_class=DirectRoute,
    generate_unique_id_function=operation_id,
    responses={
        200: {"model": ResultResponse, "description": "The present state of the job"},
        **documented(400, 401, 403, 404, 500, 503),
    },
)


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
    """Build the answer with a result that contains its first images, up to `_MAX_BYTES` in total.

    Only one part of one file is in memory, however slowly the client reads. Raises
    ImageStoreUnavailable.
    """
    chosen = [image for image in _first(images, _MAX_BYTES) if await _is_there(store, image)]
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
    return PartedAnswer(
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


@router.get("/api/v1/workflow/result", response_model=None)
@router.get("/workflow/v1/result", response_model=None)
async def workflow_result(
    request: Request,
    key: ReadKey,
    reading: ReadingDep,
    request_id: RequestId,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """Show the state and the result of a workflow job."""
    flavour = Flavour.WORKFLOW
    return await result_answer(
        reading, request, key, request_id, flavour=flavour, wait_s=wait, is_inline=inline
    )


@router.get("/api/v1/diffusion/result", response_model=None)
@router.get("/diffusion/v1/result", response_model=None)
async def diffusion_result(
    request: Request,
    key: ReadKey,
    reading: ReadingDep,
    request_id: RequestId,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """Show the state and the result of a diffusion job."""
    flavour = Flavour.DIFFUSION
    return await result_answer(
        reading, request, key, request_id, flavour=flavour, wait_s=wait, is_inline=inline
    )


async def result_answer(
    reading: Reading,
    request: Request,
    key: ApiKey,
    request_id: str,
    *,
    flavour: Flavour | None,
    wait_s: float,
    is_inline: bool,
) -> Response:
    """Build the answer with the state of a job. If `flavour` is given, the job must have it."""
    job = await reading.jobs.owned(request_id, key, flavour=flavour, with_request=False)
    wait_s = min(wait_s, MAX_WAIT_S)
    if job.end is None and wait_s > 0:
        with reading.waits.hold(key.owner):
            job = await job_at_end(reading, request, key, job, wait_s=wait_s)
        # The key is checked again, because it may have been revoked during the wait.
        await caller(request)
    result = await shown_result(reading, job)
    headers = {"Cache-Control": "no-store"} | server_timing(job)
    if not is_inline:
        return Response(result.body(), headers=headers, media_type="application/json")
    return await inline_result(
        result,
        job.images,
        reading.files.images,
        headers=headers,
    )


async def shown_result(reading: Reading, job: Job) -> ResultResponse:
    """Return the result, with the progress of a running job or the position of a waiting job."""
    delivery = await _delivery(reading, job)
    result = result_of(job, reading.files.url_for, delivery=delivery)
    if job.end is not None:
        return result
    if job.started_at is None:
        place = await reading.live.queue_positions.of(job)
        return result if place is None else result.model_copy(update=place.as_members())
    progress = reading.live.progress.get(job.id)
    return result.model_copy(update={"progress": progress and progress.fraction})


async def _delivery(reading: Reading, job: Job) -> Delivery | None:
    """Return the state of the presigned uploads of a job; None if the job has none."""
    if not job.submitted.image_puts:
        return None
    if job.end is None:
        return Delivery()
    try:
        events = await reading.deliveries.read(job.id)
    except (DatabaseUnavailable, LogUnavailable, ReadTimeout, HistoryBroken, ImageStoreError):
        return Delivery()  # The result is shown even if the delivery cannot be read.
    return fold_delivery(takewhile(is_readable, events))


async def job_at_end(
    reading: Reading, request: Request, key: ApiKey, job: Job, *, wait_s: float
) -> Job:
    """Wait until the job ends, `wait_s` is over, or the caller disconnects. Returns the job."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    try:
        # Subscribe before reading the job, so that no event is missed.
        async with reading.jobs.log.watch(job.id) as subscription:
            job = await reading.jobs.owned(job.id, key, with_request=False)
            while job.end is None and (left_s := deadline - loop.time()) > 0:
                if await _disconnected(request, subscription, for_s=min(left_s, _REREAD_S)):
                    break
                job = await reading.jobs.owned(job.id, key, with_request=False)
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
