"""Routes of pictures, which are answered once the pictures are there."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from events.store.records import ApiKey
from serve_app.adapters.credentials import GenerateAdapterKey, ReadAdapterKey
from serve_app.adapters.openai.answers import failed, images_answer
from serve_app.adapters.openai.image_stream import image_stream
from serve_app.adapters.openai.models import one_model
from serve_app.adapters.openai.requests import Wanted, edit, generation
from serve_app.adapters.waiting import ended_job
from serve_app.replica import Replica, ReplicaDep
from serve_app.routes.generate import IdempotencyKey

IMAGES = "/v1/images"

router = APIRouter(include_in_schema=False)


@router.get("/v1/models/{model:path}")
async def show_model(model: str, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """One of those that `GET /v1/models` lists."""
    return await one_model(replica, key, model)


@router.post(f"{IMAGES}/generations")
async def generate_images(
    request: Request,
    key: GenerateAdapterKey,
    replica: ReplicaDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    wanted = await generation(replica, request, key, idempotency_key)
    return await _answer(replica, request, key, wanted, event="image_generation")


@router.post(f"{IMAGES}/edits")
async def edit_image(
    request: Request,
    key: GenerateAdapterKey,
    replica: ReplicaDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    wanted = await edit(replica, request, key, idempotency_key)
    return await _answer(replica, request, key, wanted, event="image_edit")


async def _answer(
    replica: Replica, request: Request, key: ApiKey, wanted: Wanted, *, event: str
) -> Response:
    if wanted.parameters.stream:
        return image_stream(replica, request, key, wanted, event=event)
    job = await ended_job(replica, request, key, wanted.job)
    if job.end is None:
        raise failed(job)
    return await images_answer(replica, job, wanted.parameters)
