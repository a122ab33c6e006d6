"""txt2img and img2img. A request runs a diffusion job, and the answer has its images in base64."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from engine.interface import (
    DiffusionParameters,
    ImageSettings,
    parse_parameters,
    requests_nothing,
)
from events.job import Job
from events.store.records import ApiKey, Upload
from events.types import Cancelled, Completed, Flavour, ImageStored
from serve_app.acceptance import inline_images
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.acceptance.inline_images import InlineForm, inline_form
from serve_app.error_responses import ApiError
from serve_app.protocols.credentials import GenerateProtocolKey
from serve_app.protocols.notes import note_headers, note_members
from serve_app.protocols.waiting import digest_of_sent, ended_job
from serve_app.protocols.webui.errors import MAX_BODY_BYTES, V1, failure, refused
from serve_app.protocols.webui.options import endpoint_of, with_options
from serve_app.refusals import BodyTooLarge, InvalidImage
from serve_app.replica import JobAccess, JobAccessDep, KeyOptionsDep, Submission, SubmissionDep
from serve_app.routes.generate import IdempotencyKey, traceparent_of
from serve_app.stored_file import base64_of, json_in_parts, parts_of
from settings.version import VERSION
from storage.images import ImageStore

if TYPE_CHECKING:
    from events.store.keys import KeyOptions

_SIGNATURE_BYTES = 8
_HEAD_BYTES = 8
_CHECKSUM_BYTES = 4
_LONGEST_BYTES = 4 * 2**20
"""The most bytes of a file that are searched for texts, which precede the pixels."""
_LONGEST_ECHO = 64 * 1024
_SENT = ("init_images", "mask", "latent_mask")
_MOST_IMAGES = 16
"""The largest number of images to start from."""
_OF_SENDERS = ("url", "auth")
"""Members that SillyTavern adds: the target URL and the password. They must not be stored."""

router = APIRouter(prefix=V1, include_in_schema=False)


class PngTexts:
    """Reads the texts of a PNG file that arrives in parts. Compressed texts are ignored."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.is_over = False
        """Whether no more texts are read: the pixels have begun, or the limit was reached."""
        self._buffer = bytearray()
        self._at = _SIGNATURE_BYTES

    def feed(self, part: bytes) -> None:
        if self.is_over:
            return
        self._buffer += part
        while len(self._buffer) >= self._at + _HEAD_BYTES and not self.is_over:
            length, kind = struct.unpack_from(">I4s", self._buffer, self._at)
            end = self._at + _HEAD_BYTES + length
            if kind == b"IDAT" or end > _LONGEST_BYTES:
                self._end()
            elif len(self._buffer) < end:
                return
            else:
                self._note(kind, bytes(self._buffer[self._at + _HEAD_BYTES : end]))
                self._at = end + _CHECKSUM_BYTES

    def _end(self) -> None:
        self.is_over = True
        self._buffer.clear()

    def _note(self, kind: bytes, data: bytes) -> None:
        name, _, rest = data.partition(b"\0")
        if kind == b"tEXt":
            self.found[name.decode("latin-1")] = rest.decode("latin-1")
        elif kind == b"iTXt" and rest[:1] == b"\0":
            text = rest[2:].split(b"\0", 2)[-1]
            self.found[name.decode("latin-1")] = text.decode("utf-8", "replace")


async def pictures_answer(
    access: JobAccess, job: Job, asked: Mapping[str, Any], *, sends_images: bool
) -> Response:
    """Build the answer of txt2img and img2img. Raises ImageStoreError."""
    images = sorted(job.images, key=lambda image: image.index)
    whole = await access.jobs.current(job.id) or job
    info = await asyncio.to_thread(_info, whole, images)
    parts = _images_body(
        access.files.images,
        images,
        asked,
        info=info,
        sends_images=sends_images,
        recorded=_recorded_infotext(whole),
    )
    answer = await json_in_parts(parts)
    answer.headers.update(note_headers(whole))
    return answer


def _recorded_infotext(job: Job) -> Callable[[int], str]:
    """Return a function that takes the index of an image and returns its text, without hashes.

    Images of a ComfyUI server have no such text.
    """
    compiled = job.submitted.compiled
    if compiled is None or (infotext := compiled.infotext) is None:
        return lambda _index: ""
    settings = ImageSettings(infotext.settings, infotext.seeds, infotext.variation_seeds)
    return settings.describe(job.submitted.request, compiled.graph, None, VERSION)


async def _images_body(
    store: ImageStore,
    images: Sequence[ImageStored],
    asked: Mapping[str, Any],
    *,
    info: dict[str, Any],
    sends_images: bool,
    recorded: Callable[[int], str],
) -> AsyncGenerator[bytes]:
    infotexts: list[str] = []
    before = b'{"images": ['
    for number, image in enumerate(images):
        texts = PngTexts()
        if sends_images:
            yield before + (b', "' if number else b'"')
            async for part in base64_of(store, image, note=texts.feed):
                yield part
            before = b'"'
        else:
            await _read_texts(store, image, texts)
        infotexts.append(texts.found.get("parameters") or recorded(image.index))
    told = json.dumps({**info, "infotexts": infotexts})
    echo = json.dumps(asked)
    shown = echo if len(echo) <= _LONGEST_ECHO else "{}"
    yield before + f'], "parameters": {shown}, "info": {json.dumps(told)}}}'.encode()


async def _read_texts(store: ImageStore, image: ImageStored, texts: PngTexts) -> None:
    async for part in parts_of(store, image):
        texts.feed(part)
        if texts.is_over:
            return


def _info(job: Job, images: Sequence[ImageStored]) -> dict[str, Any]:
    """Return the WebUI's `info` object of a job, without the infotexts of its images.

    Typed clients read it, so no member is null.
    """
    terms = job.submitted.terms
    parameters = parse_parameters(
        job.submitted.request, (terms and terms.compatibility) or "comfyui"
    )
    seeds = [parameters.seed_of(index) for index in range(parameters.images)]
    subseeds = [parameters.subseed_of(index) for index in range(parameters.images)]
    count = parameters.images
    is_denoised = parameters.enable_hr or parameters.starts_from_images
    width, height = _first_size(job, images)
    return {
        "prompt": parameters.prompt,
        "all_prompts": [parameters.prompt] * count,
        "negative_prompt": parameters.negative_prompt,
        "all_negative_prompts": [parameters.negative_prompt] * count,
        "seed": seeds[0],
        "all_seeds": seeds,
        "subseed": subseeds[0],
        "all_subseeds": subseeds,
        "subseed_strength": parameters.subseed_strength,
        "width": parameters.width or width,
        "height": parameters.height or height,
        **_sampling(parameters),
        "batch_size": parameters.batch,
        **_models(parameters),
        "seed_resize_from_w": parameters.seed_resize_from_w,
        "seed_resize_from_h": parameters.seed_resize_from_h,
        "denoising_strength": parameters.denoising_strength if is_denoised else 0.0,
        "extra_generation_params": {},
        "index_of_first_image": 0,
        "styles": [],
        "job_timestamp": job.submitted_at.strftime("%Y%m%d%H%M%S"),
        "clip_skip": parameters.stops_at_layer,
        "is_using_inpainting_conditioning": False,
        "version": f"Darkroom {VERSION}",
        "request_id": job.id,
        **note_members(job),
    }


def _first_size(job: Job, images: Sequence[ImageStored]) -> tuple[int, int]:
    """Return width and height of the first pass if they are recorded, else those of an image."""
    compiled = job.submitted.compiled
    if compiled is not None and compiled.infotext is not None:
        width, height = dict(compiled.infotext.settings)["Size"].split("x")
        return int(width), int(height)
    return (images[0].width, images[0].height) if images else (0, 0)


def _models(parameters: DiffusionParameters) -> dict[str, Any]:
    """Return the names of the models, without hashes, which would require reading large files."""
    return {
        "restore_faces": False,
        "face_restoration_model": "",
        "sd_model_name": parameters.checkpoint or "",
        "sd_model_hash": "",
        "sd_vae_name": parameters.override_settings.sd_vae,
        "sd_vae_hash": "",
    }


def _sampling(parameters: DiffusionParameters) -> dict[str, Any]:
    return {
        "sampler_name": parameters.sampler_name,
        "scheduler": parameters.scheduler or "Automatic",
        "cfg_scale": parameters.cfg_scale,
        "steps": parameters.steps,
    }


async def decoded(member: str, text: Any) -> bytes:
    """Decode an image from base64. Raises ApiError 400."""
    if not isinstance(text, str) or not text:
        raise refused(f"{member} must be an image in base64.")
    if inline_form(text) is InlineForm.URL:
        raise refused(f"{member} must be an image in base64: images are not fetched from URLs.")
    # The body is already limited, and the store limits the size of uploads.
    decode = partial(inline_images.decoded, text, max_bytes=len(text))
    try:
        return await asyncio.to_thread(decode)
    except InvalidImage as error:
        raise refused(f"{member} must be an image in base64. {error}") from error


async def stored(submission: Submission, key: ApiKey, member: str, text: Any) -> Upload:
    """Store an image, if it is new. Raises ApiError 400 and the errors of `UploadStore.add`."""
    return await submission.uploads.add_content(key.owner, await decoded(member, text))


@router.post("/txt2img")
async def text_to_image(
    request: Request,
    key: GenerateProtocolKey,
    *,
    submission: SubmissionDep,
    access: JobAccessDep,
    key_options: KeyOptionsDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    wanted = await _wanted(
        submission,
        request,
        key,
        key_options=key_options,
        idempotency_key=idempotency_key,
        from_images=False,
    )
    return await _answer(submission, access, request, key, wanted=wanted)


@router.post("/img2img")
async def image_to_image(
    request: Request,
    key: GenerateProtocolKey,
    *,
    submission: SubmissionDep,
    access: JobAccessDep,
    key_options: KeyOptionsDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    wanted = await _wanted(
        submission,
        request,
        key,
        key_options=key_options,
        idempotency_key=idempotency_key,
        from_images=True,
    )
    return await _answer(submission, access, request, key, wanted=wanted)


async def _answer(
    submission: Submission,
    access: JobAccess,
    request: Request,
    key: ApiKey,
    *,
    wanted: GenerateRequest,
) -> Response:
    job = await ended_job(submission, access, request, key, wanted=wanted)
    if not isinstance(job.end, Completed | Cancelled):
        raise failure(job)
    asked = {name: value for name, value in wanted.content.items() if name not in _SENT}
    sends_images = asked.get("send_images") is not False
    return await pictures_answer(access, job, asked, sends_images=sends_images)


async def _wanted(
    submission: Submission,
    request: Request,
    key: ApiKey,
    *,
    key_options: KeyOptions,
    idempotency_key: str | None,
    from_images: bool,
) -> GenerateRequest:
    """Build the job of a request, and release the memory for the sent images.

    Raises ApiError, BodyTooLarge, and the errors of `UploadStore.add`.
    """
    async with submission.bodies.json(request, key.owner, max_bytes=MAX_BODY_BYTES) as (
        body,
        content,
    ):
        given = _object(content)
        own = {k: each for k, each in given.items() if k not in (*_SENT, *_OF_SENDERS)}
        asked = await with_options(key_options, key, own)
        images = await _stored_images(submission, key, given) if from_images else {}
        endpoint = await endpoint_of(request, submission, key)
        # A ComfyUI server has only its own compatibility, which is the default there.
        usual = {} if endpoint.engine == "comfyui" else {"compatibility": "webui"}
        members = {**usual, **asked, **images}
        written = await asyncio.to_thread(_written, members)
        sent = await asyncio.to_thread(digest_of_sent, request, body)
    if len(written) > (most := submission.bodies.max_bytes):
        raise BodyTooLarge(len(written) - most)
    return GenerateRequest(
        flavour=Flavour.DIFFUSION,
        key=key,
        endpoint=endpoint.id,
        body=written,
        content=members,
        preview=True,
        image_format="png",
        sent=sent,
        idempotency_key=idempotency_key,
        traceparent=traceparent_of(request),
    )


def _written(members: dict[str, Any]) -> bytes:
    return json.dumps(members, sort_keys=True).encode()


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise refused("The body must be a JSON object.")
    return content


async def _stored_images(
    submission: Submission, key: ApiKey, given: dict[str, Any]
) -> dict[str, Any]:
    """Store the images of a request, and return the members that name the uploads.

    Raises ApiError, and the errors of `UploadStore.add`.
    """
    images = given.get("init_images")
    if not images or requests_nothing(images):
        raise ApiError(404, "not_found", "Init image not found")
    if not isinstance(images, list) or len(images) > _MOST_IMAGES:
        raise refused(f"init_images must be a list of 1 to {_MOST_IMAGES} images.")
    if given.get("latent_mask"):
        raise refused("latent_mask is not supported: use mask.")
    names = []
    for number, image in enumerate(images):
        upload = await stored(submission, key, f"init_images.{number}", image)
        names.append(upload.name)
    sent: dict[str, Any] = {"init_images": names}
    if given.get("mask"):
        sent["mask"] = (await stored(submission, key, "mask", given["mask"])).name
    return sent
