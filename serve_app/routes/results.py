"""Routes of results, of both flavours; `wait` holds the answer until the job ends."""

from __future__ import annotations

import asyncio
from itertools import takewhile
from typing import Annotated, get_args

from fastapi import APIRouter, Query, Request, Response

from events.delivery import Delivery, fold_delivery
from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout, SegmentBroken
from events.job import Job, is_readable
from events.log import Subscription
from events.result import ResultResponse, result_of
from events.store.records import ApiKey
from events.types import End, Flavour
from serve_app.auth import ReadKey, caller
from serve_app.job_state import owned_job
from serve_app.openapi.document import operation_id
from serve_app.openapi.error_responses import documented
from serve_app.replica import Replica, ReplicaDep
from serve_app.routes.direct_route import DirectRoute
from serve_app.routes.server_timing import server_timing
from serve_app.sending.inline_result import inline_result
from serve_app.services import Services
from storage.images import ImageStoreError

_SLICE_S = 1.0
"""How often a waiting answer checks whether its caller is still connected."""
_REREAD_S = 5.0
"""How often it reads the job again: a subscription may lose a message."""
_ENDS = get_args(End)

RequestId = Annotated[str, Query(description="Id that the generate request answered")]
Wait = Annotated[
    float,
    Query(
        ge=0,
        allow_inf_nan=False,
        description="Seconds to hold the answer until the job ends; 60 at most unless the "
        "service is set up otherwise, more is cut to that",
    ),
]
Inline = Annotated[
    bool,
    Query(
        description="Have the files of the images in the answer, too, as base64 in `data`: the "
        "first ones of up to 4 MiB together, unless the service is set up otherwise"
    ),
]

router = APIRouter(
    tags=["results"],
    route_class=DirectRoute,
    generate_unique_id_function=operation_id,
    responses={
        200: {"model": ResultResponse, "description": "The job as it is now"},
        **documented(400, 401, 403, 404, 500, 503),
    },
)


@router.get("/api/v1/workflow/result", response_model=None)
@router.get("/workflow/v1/result", response_model=None)
async def workflow_result(
    request: Request,
    key: ReadKey,
    replica: ReplicaDep,
    request_id: RequestId,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """The state of a workflow job."""
    flavour = Flavour.WORKFLOW
    return await result_answer(
        replica, request, key, request_id, flavour=flavour, wait_s=wait, is_inline=inline
    )


@router.get("/api/v1/diffusion/result", response_model=None)
@router.get("/diffusion/v1/result", response_model=None)
async def diffusion_result(
    request: Request,
    key: ReadKey,
    replica: ReplicaDep,
    request_id: RequestId,
    *,
    wait: Wait = 0,
    inline: Inline = False,
) -> Response:
    """The state of a diffusion job."""
    flavour = Flavour.DIFFUSION
    return await result_answer(
        replica, request, key, request_id, flavour=flavour, wait_s=wait, is_inline=inline
    )


async def result_answer(
    replica: Replica,
    request: Request,
    key: ApiKey,
    request_id: str,
    *,
    flavour: Flavour | None,
    wait_s: float,
    is_inline: bool,
) -> Response:
    """The state of a job; `flavour`: the only one that it may have."""
    services = replica.services
    job = await owned_job(services, request_id, key, flavour=flavour, with_request=False)
    wait_s = min(wait_s, services.http_settings.max_wait_s)
    if job.end is None and wait_s > 0:
        with replica.waits.hold(key.owner):
            job = await job_at_end(services, request, key, job, wait_s=wait_s)
        await caller(request)  # the key may have been revoked meanwhile
    result = await shown_result(replica, job)
    headers = {"Cache-Control": "no-store"} | server_timing(job)
    if not is_inline:
        return Response(result.body(), headers=headers, media_type="application/json")
    return await inline_result(
        result,
        job.images,
        services.images,
        max_bytes=services.http_settings.max_inline_bytes,
        headers=headers,
        send_timeout_s=services.http_settings.silence_timeout_s,
    )


async def shown_result(replica: Replica, job: Job) -> ResultResponse:
    """The result, with the progress of a job that runs, or the place of one that waits."""
    delivery = await _delivery(replica.services, job)
    result = result_of(job, replica.services.url_for, delivery=delivery)
    if job.end is not None:
        return result
    if job.started_at is None:
        place = await replica.queue_places.of(job)
        return result if place is None else result.model_copy(update=place.told())
    progress = replica.services.progress.get(job.id)
    return result.model_copy(update={"progress": progress and progress.fraction})


async def _delivery(services: Services, job: Job) -> Delivery | None:
    """What became of images that are put somewhere, as far as it can be told now."""
    if not job.submitted.image_puts:
        return None
    if job.end is None:
        return Delivery()
    try:
        events = await services.deliveries.read(job.id)
    except (DatabaseUnavailable, LogUnavailable, ReadTimeout, SegmentBroken, ImageStoreError):
        return Delivery()  # the result itself does not wait for what is away
    return fold_delivery(takewhile(is_readable, events))


async def job_at_end(
    services: Services, request: Request, key: ApiKey, job: Job, *, wait_s: float
) -> Job:
    """The job once it has ended, or as it is after `wait_s` or once the caller has hung up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    try:
        # Subscribe first: an event that is stored between the two is not missed.
        async with services.log.watch(job.id) as subscription:
            job = await owned_job(services, job.id, key, with_request=False)
            while job.end is None and (left_s := deadline - loop.time()) > 0:
                if await _disconnected(request, subscription, for_s=min(left_s, _REREAD_S)):
                    break
                job = await owned_job(services, job.id, key, with_request=False)
    except (LogUnavailable, ReadTimeout):
        return job
    return job


async def _disconnected(request: Request, subscription: Subscription, *, for_s: float) -> bool:
    """Wait for the end of the job; True where the caller hangs up meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + for_s
    while (left_s := deadline - loop.time()) > 0:
        event = await subscription.next(min(left_s, _SLICE_S))
        if event is not None and isinstance(event.data, _ENDS):
            return False
        if event is None and await request.is_disconnected():
            return True
    return False
