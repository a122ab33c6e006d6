"""`/upload/image` and `/upload/mask`: input images, as ComfyUI's clients send them."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Request
from starlette.datastructures import FormData

from events.store.records import ApiKey
from serve_app.adapters.comfyui.bodies import invalid
from serve_app.adapters.comfyui.pictures import masked
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.comfyui.view import stored_file
from serve_app.adapters.credentials import GenerateAdapterKey
from serve_app.receiving.forms import read_form
from serve_app.replica import Replica, ReplicaDep
from serve_app.sending.stored_file import StoredFile
from serve_app.uploads.images import read_input_image

router = APIRouter(include_in_schema=False)


@router.post(twin("/upload/image"))
async def upload_image(
    request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> dict[str, Any]:
    """Store an input image under its name, which stands for the new one from now on."""
    async with read_form(replica, request, key.owner) as (name, data, form):
        stored = await replica.upload_store.add(key.owner, name, data)
    return _answer(stored.name, form)


@router.post(twin("/upload/mask"))
async def upload_mask(
    request: Request, key: GenerateAdapterKey, replica: ReplicaDep
) -> dict[str, Any]:
    """Store the picture that `original_ref` names, with the alpha of the one that is sent."""
    async with read_form(replica, request, key.owner) as (name, data, form):
        file = await _original(replica, key, form)
        async with replica.bodies.room(key.owner, file.size_bytes):
            original = await replica.services.images.get(file.key)
            picture = await replica.upload_store.decodes.run(
                key.owner,
                _masked,
                original,
                data,
                replica.services.http_settings.max_upload_pixels,
                is_quick=False,
            )
        stored = await replica.upload_store.add(key.owner, name, picture)
    return _answer(stored.name, form)


def _masked(original: bytes, mask: bytes, max_pixels: int) -> bytes:
    """Raises InvalidImage."""
    return masked(original, read_input_image(mask, max_pixels=max_pixels).data)


async def _original(replica: Replica, key: ApiKey, form: FormData) -> StoredFile:
    """Raises ApiError 400, 404, JobNotFound."""
    text = form.get("original_ref")
    try:
        named = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        named = None
    if not isinstance(named, dict) or not isinstance(named.get("filename"), str):
        raise invalid("original_ref does not name a file.")
    file = await stored_file(
        replica,
        key,
        named["filename"],
        subfolder=str(named.get("subfolder", "")),
        type=str(named.get("type", "output")),
    )
    if not file.media_type.startswith("image/"):
        raise invalid("original_ref names no picture.")
    return file


def _answer(name: str, form: FormData) -> dict[str, Any]:
    """With the folder that was asked for: there are none, and names lose theirs when they come."""
    folder = form.get("subfolder", "")
    return {
        "name": name,
        "subfolder": folder if isinstance(folder, str) else "",
        "type": "input",
    }
