"""Routes of pictures, which are answered once the pictures are there."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response

from events.job import Job
from events.log import utc_now
from events.store.records import ApiKey
from serve_app.adapters.credentials import GENERATE, READ, adapter_caller
from serve_app.adapters.openai.answers import failed, images_answer
from serve_app.adapters.openai.image_stream import image_stream
from serve_app.adapters.openai.models import one_model
from serve_app.adapters.openai.requests import Wanted, edit, generation
from serve_app.replica import Replica, ReplicaDep
from serve_app.routes.generate import IdempotencyKey
from serve_app.routes.results import job_at_end

Key = Annotated[ApiKey, Depends(GENERATE)]

IMAGES = "/v1/images"

router = APIRouter(include_in_schema=False)


@router.get("/v1/models/{model:path}")
async def show_model(
    model: str, key: Annotated[ApiKey, Depends(READ)], replica: ReplicaDep
) -> dict[str, Any]:
    """One of those that `GET /v1/models` lists."""
    return await one_model(replica, key, model)


@router.post(f"{IMAGES}/generations")
async def generate_images(
    request: Request, key: Key, replica: ReplicaDep, idempotency_key: IdempotencyKey = None
) -> Response:
    wanted = await generation(replica, request, key, idempotency_key)
    return await _answer(replica, request, key, wanted, event="image_generation")


@router.post(f"{IMAGES}/edits")
async def edit_image(
    request: Request, key: Key, replica: ReplicaDep, idempotency_key: IdempotencyKey = None
) -> Response:
    wanted = await edit(replica, request, key, idempotency_key)
    return await _answer(replica, request, key, wanted, event="image_edit")


async def _answer(
    replica: Replica, request: Request, key: ApiKey, wanted: Wanted, *, event: str
) -> Response:
    if wanted.parameters.stream:
        return image_stream(replica, request, key, wanted, event=event)
    job = await _ended_job(replica, request, key, wanted)
    await adapter_caller(request)  # the key may have been revoked meanwhile
    if job.end is None:
        raise failed(job)
    return await images_answer(replica, job, wanted.parameters)


async def _ended_job(replica: Replica, request: Request, key: ApiKey, wanted: Wanted) -> Job:
    """The job once it has ended, or as it is once its time here is over.

    Without an idempotency key nobody finds the job of a caller who hangs up: it is cancelled.
    """
    services = replica.services
    began = utc_now()
    with replica.waits.hold(key.owner):
        job = await replica.acceptance.accept(wanted.job)
        replica.note_accepted(job, began=began)
        is_gone = True
        try:
            wait_s = services.adapter_settings.max_wait_s
            job = await job_at_end(services, request, key, job, wait_s=wait_s)
            is_gone = job.end is None and await request.is_disconnected()
        finally:
            if is_gone and wanted.job.idempotency_key is None:
                replica.withdrawals.schedule(job.id)
    return job
