"""Converts requests of OpenAI's images API to generate requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from starlette.datastructures import FormData, UploadFile

from engine.interface import requests_nothing
from events.store.records import ApiKey, Upload
from events.types import Flavour
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.bodies import files_in, read_files
from serve_app.error_responses import ApiError
from serve_app.protocols.graphs import node, whole_cells
from serve_app.protocols.openai.models import target_of, workflow_of
from serve_app.protocols.waiting import digest_of_sent
from serve_app.replica import Submission
from serve_app.routes.generate import traceparent_of
from serve_app.upload_store import has_transparency
from serve_app.workflows.named import FoundWorkflow

_QUALITY_STEPS = {
    "low": 12,
    "medium": 20,
    "standard": 20,
    "auto": 20,
    "high": 40,
    "hd": 40,
    "xhigh": 60,
    "max": 80,
}
_LONGEST_PROMPT = 32_000
_BY_URL = "dall-e"
"""The name prefix of models whose answers have URLs, unless a request sets `response_format`."""

Quality = Literal["low", "medium", "high", "xhigh", "max", "auto", "standard", "hd"]
OutputFormat = Literal["png", "webp", "jpeg"]
_SAMPLER = "Euler"
_CFG = 7.0
_IMAGE_FIELDS = ("image", "image[]")
_PARAMETER_OF = {
    "batch_size": "n",
    "width": "size",
    "height": "size",
    "cfg": "cfg_scale",
    "negative_prompt": "negative_prompt",
}
"""The parameters of a request by the names of the inputs that they set."""
_MASK_FIELD = "mask"
_MAX_IMAGES = 16
_MAX_FILES = _MAX_IMAGES + 1
_MIN_SIDE = 16


def _opaque(value: str) -> str:
    if value == "transparent":
        raise ValueError("transparent backgrounds are not supported: send opaque or auto")
    return value


def _size(value: str) -> str:
    if value == "auto":
        return value
    width, _, height = value.partition("x")
    if not (_is_side(width) and _is_side(height)):
        raise ValueError("must be auto, or width x height in pixels, such as 1024x1024")
    return value


def _is_side(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5


class ImageParameters(BaseModel):
    """The members of both routes. A member that is null or empty counts as absent."""

    model_config = ConfigDict(extra="forbid")

    prompt: Annotated[str, Field(min_length=1, max_length=_LONGEST_PROMPT)]
    model: Annotated[str, Field(max_length=1024)] = ""
    n: Annotated[int, Field(ge=1, le=10)] = 1
    size: Annotated[str, AfterValidator(_size)] = "auto"
    quality: Quality = "auto"
    background: Annotated[Literal["transparent", "opaque", "auto"], AfterValidator(_opaque)] = (
        "auto"
    )
    response_format: Literal["url", "b64_json"] | None = None
    output_format: OutputFormat | None = None
    output_compression: Annotated[int, Field(ge=0, le=100)] | None = None
    stream: bool = False
    partial_images: Annotated[int, Field(ge=0, le=3)] = 0
    # These members have no effect.
    user: str | None = None
    safety_identifier: str | None = None
    # These members are Darkroom's own. Clients of OpenAI send them by `extra_body`.
    negative_prompt: Annotated[str, Field(max_length=_LONGEST_PROMPT)] = ""
    seed: Annotated[int, Field(ge=-1, lt=2**64)] = -1
    steps: Annotated[int, Field(ge=1, le=150)] | None = None
    cfg_scale: Annotated[float, Field(ge=1, le=30)] | None = None
    """None means the default of the checkpoint."""

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, body: Any) -> Any:
        """Remove unknown members that request nothing."""
        if not isinstance(body, dict):
            return body
        known = cls.model_fields
        return {k: v for k, v in body.items() if k in known or not requests_nothing(v)}

    @field_validator("*", mode="before")
    @classmethod
    def _default_of_null(cls, value: Any, info: Any) -> Any:
        field = cls.model_fields[info.field_name]
        return value if value not in (None, "") or field.is_required() else field.default

    @property
    def sides(self) -> tuple[int, int] | None:
        """The width and height in pixels, rounded down to multiples of 8; None for `auto`."""
        if self.size == "auto":
            return None
        width, _, height = self.size.partition("x")
        return whole_cells(int(width)), whole_cells(int(height))

    @property
    def has_urls(self) -> bool:
        """Whether the answer has URLs instead of images in base64."""
        asked = self.response_format
        return asked == "url" or (asked is None and self.model.startswith(_BY_URL))

    @property
    def quality_of_file(self) -> int | None:
        """The quality of a WebP or JPEG file, 1 to 100; None for PNG, which is lossless."""
        if self.output_format in {None, "png"} or self.output_compression is None:
            return None
        return max(1, self.output_compression)

    def effective_steps(self, most: int) -> int:
        """Return `steps`. If it is absent, `quality` selects a number that is at most `most`."""
        return self.steps or min(_QUALITY_STEPS[self.quality], most)


class GenerationParameters(ImageParameters):
    # These members have no effect.
    moderation: Literal["low", "auto"] = "auto"
    style: Literal["vivid", "natural"] | None = None


class EditParameters(ImageParameters):
    input_fidelity: Literal["high", "low"] = "low"
    denoising_strength: Annotated[float, Field(gt=0, le=1)] | None = None
    """A member that only Darkroom has: the strength of changes in an image without a mask."""

    @property
    def denoise(self) -> float:
        return self.denoising_strength or (0.5 if self.input_fidelity == "high" else 0.75)


class VariationParameters(EditParameters):
    """OpenAI's variations have no prompt. The members of edits are additional ones."""

    prompt: Annotated[str, Field(max_length=_LONGEST_PROMPT)] = ""


@dataclass(frozen=True, slots=True)
class Edit:
    parameters: EditParameters
    checkpoint: str
    steps: int
    image: Upload
    mask: Upload | None
    """The image is repainted where the mask is transparent."""
    sampling: Mapping[str, Any]
    """The inputs of the KSampler node that depend on the checkpoint: sampler, scheduler, cfg."""

    @property
    def sides(self) -> tuple[int, int]:
        """The requested width and height in pixels, or the width and height of the image."""
        asked = self.parameters.sides
        if asked is not None:
            return asked
        return whole_cells(self.image.width), whole_cells(self.image.height)

    @property
    def is_scaled(self) -> bool:
        return self.sides != (self.image.width, self.image.height)


def edit_graph(edit: Edit) -> dict[str, Any]:
    """Build the graph of an edit in ComfyUI's API format."""
    asked = edit.parameters
    graph = {
        "checkpoint": node("CheckpointLoaderSimple", ckpt_name=edit.checkpoint),
        "positive": node("CLIPTextEncode", clip=["checkpoint", 1], text=asked.prompt),
        "negative": node("CLIPTextEncode", clip=["checkpoint", 1], text=asked.negative_prompt),
        "image": node("LoadImage", image=edit.image.name),
        **_sized(edit, "sized", ["image", 0]),
    }
    pixels = ["sized", 0] if edit.is_scaled else ["image", 0]
    graph["encoded"] = node("VAEEncode", pixels=pixels, vae=["checkpoint", 2])
    samples = ["encoded", 0]
    mask = None if edit.mask is None else _mask_nodes(edit, graph, edit.mask)
    if mask is not None:
        graph["masked"] = node("SetLatentNoiseMask", samples=samples, mask=mask)
        samples = ["masked", 0]
    if asked.n > 1:
        graph["batch"] = node("RepeatLatentBatch", samples=samples, amount=asked.n)
        samples = ["batch", 0]
    graph["sampler"] = node(
        "KSampler",
        model=["checkpoint", 0],
        seed=asked.seed,
        steps=edit.steps,
        **edit.sampling,
        positive=["positive", 0],
        negative=["negative", 0],
        latent_image=samples,
        denoise=asked.denoise if mask is None else 1.0,
    )
    graph["decoded"] = node("VAEDecode", samples=["sampler", 0], vae=["checkpoint", 2])
    images = ["decoded", 0]
    if mask is not None:
        images = _kept_outside(edit, graph, pixels=pixels, mask=mask)
    graph["save"] = node("SaveImage", images=images, filename_prefix="edit")
    return graph


def _mask_nodes(edit: Edit, graph: dict[str, Any], mask: Upload) -> list[Any]:
    """Add the nodes that load the mask and scale it to the result. Returns the mask's link.

    LoadImage makes a mask of the transparent pixels.
    """
    graph["mask"] = node("LoadImage", image=mask.name)
    if not edit.is_scaled:
        return ["mask", 1]
    graph["mask-image"] = node("MaskToImage", mask=["mask", 1])
    graph |= _sized(edit, "mask-sized", ["mask-image", 0])
    graph["mask-again"] = node("ImageToMask", image=["mask-sized", 0], channel="red")
    return ["mask-again", 0]


def _kept_outside(
    edit: Edit, graph: dict[str, Any], *, pixels: list[Any], mask: list[Any]
) -> list[Any]:
    """Add the nodes that restore the image where the mask is opaque. Returns the result's link."""
    if edit.parameters.n > 1:
        graph["originals"] = node("RepeatImageBatch", image=pixels, amount=edit.parameters.n)
        pixels = ["originals", 0]
    graph["composite"] = node(
        "ImageCompositeMasked",
        destination=pixels,
        source=["decoded", 0],
        mask=mask,
        x=0,
        y=0,
        resize_source=False,
    )
    return ["composite", 0]


def _sized(edit: Edit, id: str, image: list[Any]) -> dict[str, Any]:
    """Build a node that scales images to the size of the result; empty if the size is the same."""
    if not edit.is_scaled:
        return {}
    width, height = edit.sides
    method = {"upscale_method": "bicubic", "crop": "center"}
    return {id: node("ImageScale", image=image, width=width, height=height, **method)}


P = TypeVar("P", bound=ImageParameters)


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """The parameters of a request, and the job that computes its images."""

    parameters: ImageParameters
    job: GenerateRequest
    notes: tuple[str, ...] = ()
    """How the job deviates from the request, for the answer."""


async def generation(
    submission: Submission, request: Request, key: ApiKey, idempotency_key: str | None
) -> ImageRequest:
    """Read a generation request.

    Raises the errors of reading the body, `target_of` and checking the parameters.
    """
    asked = await submission.bodies.model(request, key.owner, GenerationParameters)
    if (found := await workflow_of(submission, key, asked.model)) is not None:
        return await _of_workflow(
            submission, request, key, found, asked=asked, idempotency_key=idempotency_key
        )
    target = await target_of(submission, key, asked.model)
    body: dict[str, Any] = {
        "prompt": asked.prompt,
        "negative_prompt": asked.negative_prompt,
        "batch_size": asked.n,
        "steps": asked.effective_steps(submission.acceptance.max_steps(target.endpoint)),
        "seed": asked.seed,
    }
    if asked.cfg_scale is not None:
        body["cfg_scale"] = asked.cfg_scale
    if asked.sides is not None:
        body["width"], body["height"] = asked.sides
    if target.checkpoint is not None:
        body["sd_model_checkpoint"] = target.checkpoint
    return _image_request(
        request,
        key,
        asked,
        endpoint=target.endpoint.id,
        flavour=Flavour.DIFFUSION,
        content=body,
        sent={},
        idempotency_key=idempotency_key,
    )


async def edit(
    submission: Submission,
    request: Request,
    key: ApiKey,
    idempotency_key: str | None,
    *,
    model: type[EditParameters] = EditParameters,
) -> ImageRequest:
    """Read an edit request. Its files are stored as uploads with names from their content.

    Raises the errors of reading the form, `target_of`, storing uploads and checking parameters.
    """
    form_of = read_files(
        submission.bodies,
        request,
        key.owner,
        fields=(*_IMAGE_FIELDS, _MASK_FIELD),
        texts=model.model_fields,
        max_files=_MAX_FILES,
    )
    async with form_of as form:
        texts = {name: each for name, each in form.items() if isinstance(each, str)}
        asked = _parsed(texts, model)
        images, mask_file = _files(form)
        found = await workflow_of(submission, key, asked.model)
        if found is not None:
            stored = [
                await submission.uploads.add_content(key.owner, await each.read())
                for each in [*images, *([mask_file] if mask_file else [])]
            ]
            names = [each.name for each in stored]
            return await _of_workflow(
                submission,
                request,
                key,
                found,
                asked=asked,
                idempotency_key=idempotency_key,
                images=names[: len(images)],
                mask=names[len(images)] if mask_file else None,
            )
        image_file = await images[0].read()
        target = await target_of(submission, key, asked.model)
        image = await submission.uploads.add_content(key.owner, image_file)
        mask = None
        if mask_file is not None:
            mask = await _stored_mask(submission, key, await mask_file.read(), image)
    checkpoint = target.checkpoint or await submission.acceptance.checkpoint(target.endpoint, key)
    if checkpoint is None:
        raise ApiError(400, "checkpoint_unavailable", "There is no checkpoint.")
    steps = asked.effective_steps(submission.acceptance.max_steps(target.endpoint))
    usual = await asyncio.to_thread(submission.catalogue.defaults, checkpoint)
    sampler, scheduler = usual.node_names
    cfg = asked.cfg_scale or usual.cfg_scale
    sampling = {"sampler_name": sampler, "scheduler": scheduler, "cfg": cfg}
    new_edit = Edit(asked, checkpoint, steps, image, mask, sampling)
    if min(new_edit.sides) < _MIN_SIDE:
        raise _refused("size", f"The sides of an image must have at least {_MIN_SIDE} pixels.")
    body = {"prompt": edit_graph(new_edit)}
    image_request = _image_request(
        request,
        key,
        asked,
        endpoint=target.endpoint.id,
        flavour=Flavour.WORKFLOW,
        content=body,
        sent={"image": image.name, "mask": None if mask is None else mask.name},
        idempotency_key=idempotency_key,
    )
    if len(images) == 1:
        return image_request
    note = (
        f"Only the first of the {len(images)} images was used, because the model {checkpoint} "
        "edits one image."
    )
    return replace(image_request, notes=(note,))


async def _of_workflow(
    submission: Submission,
    request: Request,
    key: ApiKey,
    found: FoundWorkflow,
    *,
    asked: ImageParameters,
    idempotency_key: str | None,
    images: Sequence[str] = (),
    mask: str | None = None,
) -> ImageRequest:
    """Return the request of a named workflow, whose inputs get the parameters of their names.

    Raises ApiError 400 for a parameter without an input. A prompt without an input is noted.
    """
    known = found.definition.inputs
    sides = asked.sides or (None, None)
    given = {
        "prompt": asked.prompt or None,
        "negative_prompt": asked.negative_prompt or None,
        "batch_size": asked.n if asked.n > 1 or "batch_size" in known else None,
        "width": sides[0],
        "height": sides[1],
        "seed": asked.seed if asked.seed >= 0 else None,
        "steps": asked.steps,
        "cfg": asked.cfg_scale,
        "mask": mask,
        **{_numbered("image", at): name for at, name in enumerate(images, start=1)},
    }
    inputs = {name: value for name, value in given.items() if value is not None}
    notes: tuple[str, ...] = ()
    if "prompt" in inputs and "prompt" not in known:
        del inputs["prompt"]
        notes = (f"The prompt was not used, because {found.versioned_name} has no input `prompt`.",)
    for name in inputs.keys() - known.keys():
        message = f"The workflow {found.versioned_name} has no input {name!r}."
        raise _refused(_PARAMETER_OF.get(name, name.partition("_")[0]), message)
    content = {"inputs": inputs}
    image_request = _image_request(
        request,
        key,
        asked,
        endpoint="",
        flavour=Flavour.WORKFLOW,
        content=content,
        sent={"images": list(images), "mask": mask},
        idempotency_key=idempotency_key,
    )
    job = await submission.workflows.request_of(
        found, content, image_request.job, reference=asked.model
    )
    return replace(image_request, job=job, notes=notes)


def _numbered(name: str, number: int) -> str:
    """Return the name that a named workflow proposes for the input with this number."""
    return name if number == 1 else f"{name}_{number}"


def _image_request(
    request: Request,
    key: ApiKey,
    asked: ImageParameters,
    *,
    endpoint: str,
    flavour: Flavour,
    content: dict[str, Any],
    sent: dict[str, Any],
    idempotency_key: str | None,
) -> ImageRequest:
    """Build the job of a request. `sent` has the names of its files, which are their hashes."""
    members = asked.model_dump(mode="json", exclude_defaults=True) | sent
    job = GenerateRequest(
        flavour=flavour,
        key=key,
        endpoint=endpoint,
        body=json.dumps(content, sort_keys=True).encode(),
        content=content,
        preview=asked.stream and asked.partial_images > 0,
        image_format=asked.output_format,
        image_quality=asked.quality_of_file,
        sent=digest_of_sent(request, json.dumps(members, sort_keys=True).encode()),
        idempotency_key=idempotency_key,
        traceparent=traceparent_of(request),
    )
    return ImageRequest(asked, job)


def _parsed(texts: Mapping[str, str], model: type[P]) -> P:
    """Validate a form, in which numbers and booleans are texts. Raises RequestValidationError."""
    try:
        return model.model_validate(texts)
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(errors) from error


def _files(form: FormData) -> tuple[list[UploadFile], UploadFile | None]:
    """Return the images, at least one, and the mask, if any. Raises ApiError 400."""
    images: list[UploadFile] = []
    masks: list[UploadFile] = []
    for field, file in files_in(form):
        (masks if field == _MASK_FIELD else images).append(file)
    if not 0 < len(images) <= _MAX_IMAGES:
        raise _refused("image", f"Send 1 to {_MAX_IMAGES} images to edit, not {len(images)}.")
    return images, masks[0] if masks else None


async def _stored_mask(submission: Submission, key: ApiKey, data: bytes, image: Upload) -> Upload:
    mask = await submission.uploads.add_content(key.owner, data)
    if (mask.width, mask.height) != (image.width, image.height):
        message = (
            f"The mask has {mask.width}x{mask.height} pixels, but the image has "
            f"{image.width}x{image.height}. Send both in the same size."
        )
        raise _refused("mask", message)
    if not await asyncio.to_thread(has_transparency, data):
        message = (
            "The mask has no alpha channel. The image is edited where the mask is transparent."
        )
        raise _refused("mask", message)
    return mask


def _refused(parameter: str, message: str) -> ApiError:
    return ApiError(400, "invalid_request", message, extra_info={"parameter": parameter})
