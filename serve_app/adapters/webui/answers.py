"""The pictures of a job as the WebUI answers them: base64 in JSON, with how they were made."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from fastapi import Response

from engine.graph.names import AUTOMATIC
from engine.webui.parameters import DiffusionParameters, parse_parameters
from events.job import Job
from events.types import ImageStored
from serve_app.adapters.pictures import base64_of, json_in_parts, parts_of
from serve_app.adapters.webui.png_texts import PngTexts
from serve_app.job_state import current_job
from serve_app.replica import Replica
from storage.images import ImageStore

_LONGEST_ECHO = 64 * 1024


async def pictures_answer(
    replica: Replica, job: Job, asked: Mapping[str, Any], *, sends_images: bool
) -> Response:
    """What txt2img and img2img answer. Raises ImageStoreError."""
    services = replica.services
    images = sorted(job.images, key=lambda image: image.index)
    whole = await current_job(services, job.id) or job
    info = await asyncio.to_thread(_info, whole, images)
    parts = _body(services.images, images, asked, info=info, sends_images=sends_images)
    return await json_in_parts(replica, parts)


async def _body(
    store: ImageStore,
    images: Sequence[ImageStored],
    asked: Mapping[str, Any],
    *,
    info: dict[str, Any],
    sends_images: bool,
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
        infotexts.append(texts.found.get("parameters", ""))
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
    """What the WebUI says of a run, without the texts of its pictures."""
    terms = job.submitted.terms
    parameters = parse_parameters(
        job.submitted.request, (terms and terms.compatibility) or "comfyui"
    )
    seeds = [parameters.seed_of(index) for index in range(parameters.images)]
    subseeds = [parameters.subseed_of(index) for index in range(parameters.images)]
    count = parameters.images
    is_denoised = parameters.enable_hr or parameters.starts_from_images
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
        "width": parameters.width or (images[0].width if images else None),
        "height": parameters.height or (images[0].height if images else None),
        **_sampling(parameters),
        "batch_size": parameters.batch,
        **_models(parameters),
        "seed_resize_from_w": parameters.seed_resize_from_w,
        "seed_resize_from_h": parameters.seed_resize_from_h,
        "denoising_strength": parameters.denoising_strength if is_denoised else None,
        "extra_generation_params": {},
        "index_of_first_image": 0,
        "styles": [],
        "job_timestamp": job.submitted_at.strftime("%Y%m%d%H%M%S"),
        "clip_skip": parameters.stops_at_layer,
        "is_using_inpainting_conditioning": False,
        "request_id": job.id,
    }


def _models(parameters: DiffusionParameters) -> dict[str, Any]:
    """Without hashes: to tell them, files of gigabytes would be read."""
    return {
        "restore_faces": False,
        "face_restoration_model": None,
        "sd_model_name": parameters.checkpoint,
        "sd_model_hash": None,
        "sd_vae_name": parameters.override_settings.sd_vae or None,
        "sd_vae_hash": None,
    }


def _sampling(parameters: DiffusionParameters) -> dict[str, Any]:
    return {
        "sampler_name": parameters.sampler_name,
        "scheduler": parameters.scheduler or AUTOMATIC,
        "cfg_scale": parameters.cfg_scale,
        "steps": parameters.steps,
    }
