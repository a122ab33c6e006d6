"""txt2img and img2img: requests as jobs of the diffusion flavour, answered with their pictures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.webui.img2img.members import MOST_IMAGES
from events.store.records import ApiKey
from events.types import Cancelled, Completed, Flavour
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.adapters.credentials import GenerateAdapterKey
from serve_app.adapters.waiting import ended_job
from serve_app.adapters.webui.answers import pictures_answer
from serve_app.adapters.webui.errors import failure, refused
from serve_app.adapters.webui.options import with_options
from serve_app.adapters.webui.paths import V1
from serve_app.adapters.webui.sent_images import stored
from serve_app.api_error import ApiError
from serve_app.refusals import BodyTooLarge
from serve_app.replica import Replica, ReplicaDep
from serve_app.routes.generate import traceparent_of

_ENDPOINT = "endpoint"
_SENT = ("init_images", "mask", "latent_mask")
_OF_SENDERS = ("url", "auth")
"""SillyTavern sends along where it sends a request to, and the password, which nobody is to see."""

router = APIRouter(prefix=V1, include_in_schema=False)


@router.post("/txt2img")
async def text_to_image(request: Request, key: GenerateAdapterKey, replica: ReplicaDep) -> Response:
    return await _answer(replica, request, key, from_images=False)


@router.post("/img2img")
async def image_to_image(
    request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> Response:
    return await _answer(replica, request, key, from_images=True)


async def _answer(
    replica: Replica, request: Request, key: ApiKey, *, from_images: bool
) -> Response:
    wanted = await _wanted(replica, request, key, from_images=from_images)
    job = await ended_job(replica, request, key, wanted)
    if not isinstance(job.end, Completed | Cancelled):
        raise failure(job)
    asked = {name: value for name, value in wanted.content.items() if name not in _SENT}
    sends_images = asked.get("send_images") is not False
    return await pictures_answer(replica, job, asked, sends_images=sends_images)


async def _wanted(
    replica: Replica, request: Request, key: ApiKey, *, from_images: bool
) -> GenerateRequest:
    """The job of a request; the images that were sent are not kept while it is waited for.

    Raises ApiError, BodyTooLarge, and what `UploadStore.add` raises.
    """
    max_bytes = replica.services.adapter_settings.max_body_bytes
    async with replica.bodies.json(request, key.owner, max_bytes=max_bytes) as (_, content):
        given = _object(content)
        own = {k: each for k, each in given.items() if k not in (*_SENT, *_OF_SENDERS)}
        asked = await with_options(replica, key, own)
        sent = await _stored_images(replica, key, given) if from_images else {}
        members = {"compatibility": "webui", **asked, **sent}
        written = await asyncio.to_thread(_written, members)
    if len(written) > (most := replica.bodies.max_bytes):
        raise BodyTooLarge(len(written) - most)
    return GenerateRequest(
        flavour=Flavour.DIFFUSION,
        key=key,
        endpoint=request.query_params.get(_ENDPOINT, "default"),
        body=written,
        content=members,
        preview=True,
        image_format="png",
        traceparent=traceparent_of(request),
    )


def _written(members: dict[str, Any]) -> bytes:
    return json.dumps(members, sort_keys=True).encode()


def _object(content: Any) -> dict[str, Any]:
    """Raises ApiError 400."""
    if not isinstance(content, dict):
        raise refused("The body must be a JSON object.")
    return content


async def _stored_images(replica: Replica, key: ApiKey, given: dict[str, Any]) -> dict[str, Any]:
    """The members that name the images of a request as uploads.

    Raises ApiError, and what `UploadStore.add` raises.
    """
    images = given.get("init_images")
    if not images:
        raise ApiError(404, "not_found", "Init image not found")
    if not isinstance(images, list) or len(images) > MOST_IMAGES:
        raise refused(f"init_images must be a list of 1 to {MOST_IMAGES} images.")
    if given.get("latent_mask"):
        raise refused("latent_mask is not supported: send mask.")
    names = []
    for number, image in enumerate(images):
        upload = await stored(replica, key, f"init_images.{number}", image)
        names.append(upload.name)
    sent: dict[str, Any] = {"init_images": names}
    if given.get("mask"):
        sent["mask"] = (await stored(replica, key, "mask", given["mask"])).name
    return sent
