"""Requests of OpenAI's clients as generate requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import FormData, UploadFile

from engine.families.family import Defaults
from engine.families.recognition import family_of
from engine.families.table import TRAITS
from engine.graph.models_folder import CHECKPOINTS, ModelsFolder
from events.store.records import ApiKey, Upload
from events.types import Flavour
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.adapters.openai.edit_graph import Edit, edit_graph
from serve_app.adapters.openai.models import Target, target_of
from serve_app.adapters.openai.parameters import (
    EditParameters,
    GenerationParameters,
    ImageParameters,
)
from serve_app.api_error import ApiError
from serve_app.receiving.forms import files_in, read_files
from serve_app.replica import Replica
from serve_app.routes.generate import traceparent_of
from serve_app.uploads.images import has_transparency

P = TypeVar("P", bound=ImageParameters)

_IMAGE_FIELDS = ("image", "image[]")
_MASK_FIELD = "mask"
_MIN_SIDE = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a caller asks for, and the job that makes it."""

    parameters: ImageParameters
    job: GenerateRequest


async def generation(
    replica: Replica, request: Request, key: ApiKey, idempotency_key: str | None
) -> Wanted:
    """Raises what reading the body, `target_of` and checking parameters raise."""
    asked = await replica.bodies.model(request, key.owner, GenerationParameters)
    target = await target_of(replica, key, asked.model)
    body: dict[str, Any] = {
        "prompt": asked.prompt,
        "negative_prompt": asked.negative_prompt,
        "batch_size": asked.n,
        "steps": asked.effective_steps(_max_steps(replica, target)),
        "seed": asked.seed,
    }
    if asked.cfg_scale is not None:
        body["cfg_scale"] = asked.cfg_scale
    if asked.sides is not None:
        body["width"], body["height"] = asked.sides
    if target.checkpoint is not None:
        body["sd_model_checkpoint"] = target.checkpoint
    return _wanted(
        request,
        key,
        asked,
        target=target,
        flavour=Flavour.DIFFUSION,
        content=body,
        idempotency_key=idempotency_key,
    )


async def edit(
    replica: Replica, request: Request, key: ApiKey, idempotency_key: str | None
) -> Wanted:
    """Its files become uploads of the caller, under names that come of what they hold.

    Raises what reading the form, `target_of`, storing uploads and checking parameters raise.
    """
    async with read_files(replica, request, key.owner, max_files=2) as form:
        texts = {name: each for name, each in form.items() if isinstance(each, str)}
        asked = _parsed(texts, EditParameters)
        image_file, mask_file = await _files(form)
        target = await target_of(replica, key, asked.model)
        image = await replica.upload_store.add_content(key.owner, image_file)
        mask = None if mask_file is None else await _stored_mask(replica, key, mask_file, image)
    checkpoint = target.checkpoint or await asyncio.to_thread(
        replica.acceptance.checkpoint, target.endpoint, key
    )
    if checkpoint is None:
        raise ApiError(400, "checkpoint_unavailable", "There is no checkpoint.")
    steps = asked.effective_steps(_max_steps(replica, target))
    usual = await asyncio.to_thread(_usual, replica.services.catalogue.models, checkpoint)
    wanted = Edit(asked, checkpoint, steps, image, mask, usual)
    if min(wanted.sides) < _MIN_SIDE:
        raise _refused("size", f"The sides of a picture are {_MIN_SIDE} pixels at least.")
    body = {"prompt": edit_graph(wanted)}
    return _wanted(
        request,
        key,
        asked,
        target=target,
        flavour=Flavour.WORKFLOW,
        content=body,
        idempotency_key=idempotency_key,
    )


def _wanted(
    request: Request,
    key: ApiKey,
    asked: ImageParameters,
    *,
    target: Target,
    flavour: Flavour,
    content: dict[str, Any],
    idempotency_key: str | None,
) -> Wanted:
    job = GenerateRequest(
        flavour=flavour,
        key=key,
        endpoint=target.endpoint.id,
        body=json.dumps(content, sort_keys=True).encode(),
        content=content,
        preview=asked.stream and asked.partial_images > 0,
        image_format=asked.output_format,
        image_quality=asked.quality_of_file,
        idempotency_key=idempotency_key,
        traceparent=traceparent_of(request),
    )
    return Wanted(asked, job)


def _usual(models: ModelsFolder, checkpoint: str) -> Defaults:
    family = family_of(models, CHECKPOINTS, checkpoint)
    return TRAITS[family].defaults if family else Defaults()


def _max_steps(replica: Replica, target: Target) -> int:
    return int(target.endpoint.limits(replica.services.graph_settings)["max_steps"])


def _parsed(texts: Mapping[str, str], model: type[P]) -> P:
    """A form has texts alone, of which numbers and yes or no are read. Raises ApiError 400."""
    try:
        return model.model_validate(texts)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors) from error


async def _files(form: FormData) -> tuple[bytes, bytes | None]:
    """The image and its mask. Raises ApiError 400."""
    images: list[UploadFile] = []
    masks: list[UploadFile] = []
    for field, file in files_in(form):
        if field not in {*_IMAGE_FIELDS, _MASK_FIELD}:
            raise _refused(field, f"A file of this name is not taken: {field!r}.")
        (masks if field == _MASK_FIELD else images).append(file)
    if len(images) != 1:
        raise _refused("image", f"Send one image to edit, not {len(images)}.")
    return await images[0].read(), await masks[0].read() if masks else None


async def _stored_mask(replica: Replica, key: ApiKey, data: bytes, image: Upload) -> Upload:
    mask = await replica.upload_store.add_content(key.owner, data)
    if (mask.width, mask.height) != (image.width, image.height):
        message = (
            f"The mask has {mask.width}x{mask.height} pixels and the image "
            f"{image.width}x{image.height}: send both in one size."
        )
        raise _refused("mask", message)
    if not await asyncio.to_thread(has_transparency, data):
        message = "The mask has no alpha channel: it is transparent where the image is edited."
        raise _refused("mask", message)
    return mask


def _refused(parameter: str, message: str) -> ApiError:
    return ApiError(400, "invalid_request", message, extra_info={"parameter": parameter})
