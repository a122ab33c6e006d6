"""Images enlarged, by a workflow that is made for it; and the texts of a PNG."""

from __future__ import annotations

import asyncio
import io
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, Field

from engine.webui.infotext.reading import split_infotext
from engine.webui.values import Factor, Name, Share
from events.store.records import ApiKey
from events.types import Completed, Flavour, ImageStored
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.adapters.credentials import GenerateAdapterKey, ReadAdapterKey
from serve_app.adapters.pictures import base64_of, json_in_parts
from serve_app.adapters.waiting import ended_job
from serve_app.adapters.webui.errors import failure, refused
from serve_app.adapters.webui.paths import V1
from serve_app.adapters.webui.sent_images import decoded, stored
from serve_app.adapters.webui.upscale_graph import Enlarging, upscale_graph
from serve_app.bodies import validated
from serve_app.replica import Replica, ReplicaDep
from serve_app.routes.generate import traceparent_of
from storage.images import ImageStore

Side = Annotated[int, Field(ge=1, le=16384)]

_MOST_IMAGES = 16
_MOST_CHUNKS = 256
"""So many parts a PNG may have before its pixels, each of which may be a text."""
_LONGEST_TEXTS = 2**20

router = APIRouter(prefix=V1, include_in_schema=False)


class Extras(BaseModel, ABC):
    """Members of both routes; what restores faces is taken as long as it asks for nothing."""

    model_config = ConfigDict(extra="ignore")

    resize_mode: Annotated[int, Field(ge=0, le=1)] = 0
    show_extras_results: bool = True
    gfpgan_visibility: Annotated[Share, Field(le=0)] = 0.0
    codeformer_visibility: Annotated[Share, Field(le=0)] = 0.0
    codeformer_weight: Share = 0.0
    upscaling_resize: Annotated[Factor, Field(ge=1, le=8)] = 2.0
    upscaling_resize_w: Side = 512
    upscaling_resize_h: Side = 512
    upscaling_crop: bool = True
    upscaler_1: Name = "None"
    upscaler_2: Name = "None"
    extras_upscaler_2_visibility: Share = 0.0
    upscale_first: bool = False

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
    name: str = ""


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
    request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> Response:
    wanted = await _wanted(replica, request, key, SingleImage)
    [image] = await _enlarged(replica, request, key, wanted)
    return await json_in_parts(replica, _single(replica.services.images, image))


@router.post("/extra-batch-images")
async def extra_batch_images(
    request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> Response:
    wanted = await _wanted(replica, request, key, ImageBatch)
    images = await _enlarged(replica, request, key, wanted)
    return await json_in_parts(replica, _several(replica.services.images, images))


@router.post("/png-info")
async def png_info(request: Request, key: ReadAdapterKey, replica: ReplicaDep) -> dict[str, Any]:
    """What an image says of how it was made."""
    max_bytes = replica.services.adapter_settings.max_body_bytes
    async with replica.bodies.json(request, key.owner, max_bytes=max_bytes) as (_, content):
        image = validated(PngInfo, content).image
        texts = await asyncio.to_thread(_texts, await decoded("image", image))
    info = texts.pop("parameters", "")
    prompts, settings = split_infotext(info)
    prompt, _, negative = prompts.partition("Negative prompt:")
    named = {"Prompt": prompt.strip(), "Negative prompt": negative.strip(), **settings}
    return {"info": info, "items": {"parameters": info, **texts}, "parameters": named}


async def _wanted(
    replica: Replica, request: Request, key: ApiKey, model: type[Extras]
) -> GenerateRequest:
    """The job of a request; what was sent is not kept while it is waited for.

    Raises ApiError, RequestValidationError, and what `UploadStore.add` raises.
    """
    max_bytes = replica.services.adapter_settings.max_body_bytes
    async with replica.bodies.json(request, key.owner, max_bytes=max_bytes) as (_, content):
        asked = validated(model, content)
        uploads = [await stored(replica, key, "image", each) for each in asked.sent]
    models = replica.services.catalogue.models
    body = {"prompt": await asyncio.to_thread(upscale_graph, asked.enlarging, uploads, models)}
    return GenerateRequest(
        flavour=Flavour.WORKFLOW,
        key=key,
        endpoint=request.query_params.get("endpoint", "default"),
        body=json.dumps(body, sort_keys=True).encode(),
        content=body,
        image_format="png",
        traceparent=traceparent_of(request),
    )


async def _enlarged(
    replica: Replica, request: Request, key: ApiKey, wanted: GenerateRequest
) -> Sequence[ImageStored]:
    """The images in the order in which they were sent."""
    job = await ended_job(replica, request, key, wanted)
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


def _texts(data: bytes) -> dict[str, str]:
    """Raises ApiError 400. Nothing is decoded but the texts, which Pillow bounds."""
    _require_few_chunks(data)
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            found = {k: v for k, v in image.info.items() if isinstance(v, str)}
            texts = {str(name): str(text) for name, text in found.items()}
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise refused("image is no PNG, or damaged.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise refused("image has too many pixels.") from error
    if sum(map(len, texts.values())) > _LONGEST_TEXTS:
        raise refused(f"image has texts of more than {_LONGEST_TEXTS} characters.")
    return texts


def _require_few_chunks(data: bytes) -> None:
    """Raises ApiError 400. Pillow reads as many as there are."""
    at = 8
    for _ in range(_MOST_CHUNKS):
        if data[at + 4 : at + 8] in (b"", b"IDAT"):
            return
        at += int.from_bytes(data[at : at + 4], "big") + 12
    raise refused(f"image has more than {_MOST_CHUNKS} parts before its pixels.")
