"""`/view`: pictures of the caller's jobs and uploads, by ComfyUI's names for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from events.store.records import ApiKey
from serve_app.adapters.comfyui.files import index_in, shown_name
from serve_app.adapters.comfyui.pictures import Channel, Form, converted
from serve_app.adapters.comfyui.twins import twin
from serve_app.adapters.credentials import ReadAdapterKey
from serve_app.api_error import not_found
from serve_app.job_state import owned_job
from serve_app.replica import Replica, ReplicaDep
from serve_app.sending.stored_file import AskedDep, StoredFile, file_answer
from storage.keys import SAFETENSORS

_PREVIEW = re.compile(r"(?P<format>webp|jpeg)(?:;(?P<quality>[0-9]{1,3}))?")
_QUALITY = 90
_CACHE_CONTROL = "private, no-cache"
_HEADERS = {
    "Cache-Control": _CACHE_CONTROL,
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""Browsers send the password of Basic for pictures on pages of other origins, too."""

router = APIRouter(include_in_schema=False)


@router.get(twin("/view"), response_class=Response)
@router.head(twin("/view"), response_class=Response)
async def view(
    key: ReadAdapterKey,
    asked: AskedDep,
    replica: ReplicaDep,
    filename: Annotated[str, Query(max_length=1000)],
    *,
    subfolder: str = "",
    type: Literal["output", "temp", "input"] = "output",
    preview: str = "",
    channel: Channel = Channel.RGBA,
) -> Response:
    """A file as it is stored, smaller (`preview=webp;90`), or a part of its channels."""
    file = await stored_file(replica, key, filename, subfolder=subfolder, type=type)
    small = _PREVIEW.fullmatch(preview)
    if file.media_type == SAFETENSORS or (small is None and channel is Channel.RGBA):
        answer = await file_answer(
            file,
            asked,
            replica.services.images,
            cache_control=_CACHE_CONTROL,
            send_timeout_s=replica.services.http_settings.silence_timeout_s,
        )
        answer.headers.update(_HEADERS)
        return answer
    picture = _Wanted(
        channel,
        Form(small["format"] if small else "png"),
        min(int((small and small["quality"]) or _QUALITY), 100),
    )
    async with replica.bodies.room(key.owner, file.size_bytes):
        data = await replica.services.images.get(file.key)
        made = await replica.upload_store.decodes.run(key.owner, picture.of, data, is_quick=False)
    return Response(made, headers=_HEADERS, media_type=picture.form.media_type)


@dataclass(frozen=True, slots=True)
class _Wanted:
    channel: Channel
    form: Form
    quality: int

    def of(self, data: bytes) -> bytes:
        return converted(data, self.channel, self.form, quality=self.quality)


async def stored_file(
    replica: Replica, key: ApiKey, name: str, *, subfolder: str, type: str
) -> StoredFile:
    """Raises ApiError 404, JobNotFound."""
    if type == "input":
        return await _upload(replica, key, name)
    return await _result(replica, key, name, subfolder)


async def _result(replica: Replica, key: ApiKey, name: str, subfolder: str) -> StoredFile:
    """Raises ApiError 404, JobNotFound."""
    index = index_in(name)
    job = await owned_job(replica.services, subfolder, key, with_request=False)
    image = None if index is None else job.image(index)
    if image is None or name != shown_name(image):
        raise not_found("There is no such file.")
    return StoredFile.of_image(image)


async def _upload(replica: Replica, key: ApiKey, name: str) -> StoredFile:
    """Raises ApiError 404."""
    label = name.rpartition("/")[2]
    upload = await replica.services.uploads.find(key.owner, label)
    if upload is None:
        raise not_found("There is no such file.")
    return StoredFile.of_upload(upload)
