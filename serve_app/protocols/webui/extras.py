"""`/sdapi/v1/extra-*` and `/sdapi/v1/png-info`, which upscale images and read infotexts."""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from engine.interface import (
    Catalogue,
    GenerationText,
    Upscaler,
    generation_text,
    read_infotext,
    requests_nothing,
    split_infotext,
)
from events.store.records import ApiKey, Upload
from events.types import Completed, Flavour, ImageStored
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.bodies import validated
from serve_app.image_texts import texts_of
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.protocols.graphs import node, whole_cells
from serve_app.protocols.waiting import digest_of_sent, ended_job
from serve_app.protocols.webui.errors import MAX_BODY_BYTES, V1, failure, refused
from serve_app.protocols.webui.generation import decoded, stored
from serve_app.protocols.webui.options import endpoint_of
from serve_app.refusals import InvalidImage
from serve_app.replica import JobAccess, JobAccessDep, Submission, SubmissionDep
from serve_app.routes.generate import IdempotencyKey, traceparent_of
from serve_app.stored_file import base64_of, json_in_parts
from storage.images import ImageStore

_MIN_SIDE = 8
_NO_UPSCALER = "None"
_MOST_IMAGES = 16
_SIZE = re.compile(r"([0-9]+)x([0-9]+)")

router = APIRouter(prefix=V1, include_in_schema=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enlarging:
    first: str
    """The name of an upscaler."""
    second: str
    second_share: float
    """The weight of the second upscaler's image in the result, 0 to 1."""
    factor: float | None
    """The factor of enlargement; None if `size` determines the factor."""
    size: tuple[int, int]
    crops: bool
    """Whether the image is cropped to `size`. Without cropping, the image may be larger."""

    def sides(self, upload: Upload) -> tuple[int, int]:
        """Return width and height of the result in pixels."""
        width, height = upload.width, upload.height
        if self.factor is None and self.crops:
            return self.size
        factor = self.factor or max(self.size[0] / width, self.size[1] / height)
        return _side(width * factor), _side(height * factor)


def upscale_graph(
    wanted: Enlarging, uploads: Sequence[Upload], catalogue: Catalogue
) -> dict[str, Any]:
    """Build a graph in ComfyUI's API format with one output for each upload, in order.

    Raises ApiError 400 if an upscaler is unknown, and ModelsUnavailable.
    """
    graph: dict[str, Any] = {}
    asked = [wanted.first]
    if wanted.second_share > 0 and wanted.second != _NO_UPSCALER:
        asked.append(wanted.second)
    upscalers = [_upscaler(name, catalogue) for name in asked]
    for number, upscaler in enumerate(upscalers):
        if upscaler is not None and upscaler.by == "model":
            graph[f"model-{number}"] = node("UpscaleModelLoader", model_name=upscaler.name)
    for index, upload in enumerate(uploads):
        graph[f"image-{index}"] = node("LoadImage", image=upload.name)
        made = [
            _enlarge(graph, number, upscaler, index=index, sides=wanted.sides(upload))
            for number, upscaler in enumerate(upscalers)
        ]
        if len(made) > 1:
            share = wanted.second_share
            graph[f"both-{index}"] = node(
                "ImageBlend",
                image1=made[0],
                image2=made[1],
                blend_factor=share,
                blend_mode="normal",
            )
            made = [[f"both-{index}", 0]]
        graph[f"save-{index}"] = node("SaveImage", images=made[0], filename_prefix="extras")
    return graph


def _upscaler(name: str, catalogue: Catalogue) -> Upscaler | None:
    if name == _NO_UPSCALER:
        return None
    found = catalogue.upscaler(name)
    if found is None or found.by == "latent":
        raise refused(f"There is no upscaler {name[:80]!r}; GET /sdapi/v1/upscalers lists them.")
    return found


def _enlarge(
    graph: dict[str, Any],
    number: int,
    upscaler: Upscaler | None,
    *,
    index: int,
    sides: tuple[int, int],
) -> list[Any]:
    """Add the nodes that upscale one image. If `upscaler` is None, the image stays unchanged."""
    image: list[Any] = [f"image-{index}", 0]
    if upscaler is None:
        return image
    width, height = sides
    method = upscaler.name
    if upscaler.by == "model":
        upscaled = f"upscaled-{index}-{number}"
        graph[upscaled] = node(
            "WebUIImageUpscale",
            upscale_model=[f"model-{number}", 0],
            image=image,
            width=width,
            height=height,
        )
        image, method = [upscaled, 0], "lanczos"
    sized = f"sized-{index}-{number}"
    graph[sized] = node(
        "ImageScale", image=image, upscale_method=method, width=width, height=height, crop="center"
    )
    return [sized, 0]


def _side(side: float) -> int:
    return max(_MIN_SIDE, whole_cells(side))


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


Number = Annotated[float, BeforeValidator(_no_boolean), Field(allow_inf_nan=False)]
Share = Annotated[Number, Field(ge=0, le=1)]
Name = Annotated[str, Field(max_length=1024)]
Side = Annotated[int, Field(ge=1, le=16384)]


_OF_SIZES = {"upscaling_resize_w", "upscaling_resize_h", "upscaling_crop"}


class Extras(BaseModel, ABC):
    """The members of both routes. Members for restoring faces must have values without effect."""

    model_config = ConfigDict(extra="ignore")

    resize_mode: Annotated[int, Field(ge=0, le=1)] = 0
    show_extras_results: bool = True
    gfpgan_visibility: Annotated[Share, Field(le=0)] = 0.0
    codeformer_visibility: Annotated[Share, Field(le=0)] = 0.0
    upscaling_resize: Annotated[Number, Field(ge=1, le=8)] = 2.0
    upscaling_resize_w: Side = 512
    upscaling_resize_h: Side = 512
    upscaling_crop: bool = True
    upscaler_1: Name = "None"
    upscaler_2: Name = "None"
    extras_upscaler_2_visibility: Share = 0.0
    upscale_first: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_idle(cls, body: Any) -> Any:
        """Remove null and empty members, and members of parts that are off."""
        if not isinstance(body, dict):
            return body
        idle = {"upscaling_resize"} if _is_one(body.get("resize_mode")) else _OF_SIZES
        if requests_nothing(body.get("upscaler_2")):
            idle = {*idle, "upscaler_2", "extras_upscaler_2_visibility"}
        return {k: v for k, v in body.items() if k not in idle and v not in (None, "")}

    @property
    @abstractmethod
    def sent(self) -> Sequence[str]:
        """The images, in base64."""

    @property
    def enlarging(self) -> Enlarging:
        return Enlarging(
            first=self.upscaler_1,
            second=self.upscaler_2,
            second_share=self.extras_upscaler_2_visibility,
            factor=self.upscaling_resize if self.resize_mode == 0 else None,
            size=(self.upscaling_resize_w, self.upscaling_resize_h),
            crops=self.upscaling_crop,
        )


class SingleImage(Extras):
    image: str = ""

    @property
    def sent(self) -> Sequence[str]:
        return (self.image,)


class NamedImage(BaseModel):
    data: str


class ImageBatch(Extras):
    images: Annotated[
        list[NamedImage], Field(alias="imageList", min_length=1, max_length=_MOST_IMAGES)
    ]

    @property
    def sent(self) -> Sequence[str]:
        return [each.data for each in self.images]


class PngInfo(BaseModel):
    image: str


@router.post("/extra-single-image")
async def extra_single_image(
    request: Request,
    key: GenerateProtocolKey,
    *,
    submission: SubmissionDep,
    access: JobAccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    wanted = await _wanted(submission, request, key, idempotency_key, model=SingleImage)
    [image] = await _enlarged(submission, access, request, key, wanted=wanted)
    return await json_in_parts(_single(access.files.images, image))


@router.post("/extra-batch-images")
async def extra_batch_images(
    request: Request,
    key: GenerateProtocolKey,
    *,
    submission: SubmissionDep,
    access: JobAccessDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    wanted = await _wanted(submission, request, key, idempotency_key, model=ImageBatch)
    images = await _enlarged(submission, access, request, key, wanted=wanted)
    return await json_in_parts(_several(access.files.images, images))


@router.post("/png-info")
async def png_info(request: Request, key: ReadProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    """Return the generation parameters in the metadata of an image.

    `left_out` has the names of the settings that no diffusion request has.
    """
    async with access.bodies.json(request, key.owner, max_bytes=MAX_BODY_BYTES) as (_, content):
        data = await decoded("image", validated(PngInfo, content).image)
        return await asyncio.to_thread(_described, data)


def _described(data: bytes) -> dict[str, Any]:
    """Return the answer of `png-info`. Raises ApiError 400."""
    texts, found = _texts(data)
    prompts, settings = split_infotext(found.text)
    prompt, _, negative = prompts.partition("Negative prompt:")
    named = {"Prompt": prompt.strip(), "Negative prompt": negative.strip(), **_sized(settings)}
    read = read_infotext(found.text)
    return {
        "info": found.text,
        "items": {**texts, "parameters": found.text},
        "parameters": named,
        "left_out": [*{**found.left_out, **read.left_out}],
    }


def _sized(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings, with two numbers in place of each size, as in the WebUI."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if size := _SIZE.fullmatch(value):
            found |= {f"{name}-1": size[1], f"{name}-2": size[2]}
        else:
            found[name] = value
    return found


async def _wanted(
    submission: Submission,
    request: Request,
    key: ApiKey,
    idempotency_key: str | None,
    *,
    model: type[Extras],
) -> GenerateRequest:
    """Build the job of a request, and release the memory for the sent images.

    Raises ApiError, RequestRefused, RequestValidationError, and the errors of `UploadStore.add`.
    """
    endpoint = await endpoint_of(request, submission, key)
    async with submission.bodies.json(request, key.owner, max_bytes=MAX_BODY_BYTES) as (
        sent,
        content,
    ):
        asked = validated(model, content)
        digest = await asyncio.to_thread(digest_of_sent, request, sent)
        uploads = [await stored(submission, key, "image", each) for each in asked.sent]
    catalogue = submission.catalogue
    body = {"prompt": await asyncio.to_thread(upscale_graph, asked.enlarging, uploads, catalogue)}
    return GenerateRequest(
        flavour=Flavour.WORKFLOW,
        key=key,
        endpoint=endpoint.id,
        body=json.dumps(body, sort_keys=True).encode(),
        content=body,
        image_format="png",
        sent=digest,
        idempotency_key=idempotency_key,
        traceparent=traceparent_of(request),
    )


async def _enlarged(
    submission: Submission,
    access: JobAccess,
    request: Request,
    key: ApiKey,
    *,
    wanted: GenerateRequest,
) -> Sequence[ImageStored]:
    """Run the job, and return its images in the order of the request."""
    job = await ended_job(submission, access, request, key, wanted=wanted)
    images = sorted(job.images, key=lambda image: image.index)
    if not isinstance(job.end, Completed):
        raise failure(job)
    return images


async def _single(store: ImageStore, image: ImageStored) -> AsyncGenerator[bytes]:
    before = b'{"html_info": "", "image": "'
    async for part in base64_of(store, image):
        yield before + part
        before = b""
    yield b'"}'


async def _several(store: ImageStore, images: Sequence[ImageStored]) -> AsyncGenerator[bytes]:
    before = b'{"html_info": "", "images": ["'
    for image in images:
        async for part in base64_of(store, image):
            yield before + part
            before = b""
        before = b'", "'
    yield b'"]}'


def _texts(data: bytes) -> tuple[dict[str, str], GenerationText]:
    """Return the texts of an image, and the generation text among them. Raises ApiError 400."""
    try:
        texts, size = texts_of(data)
    except InvalidImage as error:
        raise refused(str(error)) from error
    try:
        return texts, generation_text(texts, size)
    except ValueError as error:
        raise refused(f"image has a generation text that cannot be read: {error}.") from error


_NUMBER = TypeAdapter(int)


def _is_one(value: Any) -> bool:
    """Whether a member is read as the number 1."""
    with suppress(ValidationError):
        return _NUMBER.validate_python(value) == 1
    return False
