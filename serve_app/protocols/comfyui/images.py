"""`/view` and `/upload`: images of the caller's jobs and uploads under ComfyUI's names."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from PIL import Image
from starlette.datastructures import FormData

from events.store.records import ApiKey
from serve_app.bodies import read_form
from serve_app.error_responses import not_found
from serve_app.protocols.comfyui.bodies import invalid, twin
from serve_app.protocols.comfyui.records import ResultName
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.refusals import InvalidImage
from serve_app.replica import JobAccess, JobAccessDep, Submission, SubmissionDep
from serve_app.stored_file import FileRequestDep, StoredFile, file_answer
from serve_app.upload_store import is_upload_name, read_input_image
from storage.file_names import JPEG, PNG, WEBP, without_folder, without_folders

_PREVIEW = re.compile(r"(?P<format>webp|jpeg)(?:;(?P<quality>[0-9]{1,3}))?")
_QUALITY = 90
_CONVERTED = {PNG, WEBP, JPEG}
_MOST_PIXELS = 2**27
"""The largest image that is converted. A ComfyUI server may make larger ones."""
_FORM_TEXTS = ("overwrite", "subfolder", "type", "original_ref")
_TYPES_IN_NAMES = ("output", "temp")
"""ComfyUI's types of files, except `input`, which is the default."""
_CACHE_CONTROL = "private, no-cache"
_HEADERS = {
    "Cache-Control": _CACHE_CONTROL,
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}
"""The headers of images. They prevent pages of other origins from showing the images, because
browsers send the password of Basic authentication also with requests from such pages.
"""

router = APIRouter(include_in_schema=False)


class Channel(StrEnum):
    RGBA = "rgba"
    """All channels of the file."""
    RGB = "rgb"
    A = "a"


class Form(StrEnum):
    PNG = "png"
    WEBP = "webp"
    JPEG = "jpeg"

    @property
    def media_type(self) -> str:
        return f"image/{self}"

    @property
    def max_side_px(self) -> int:
        """The longest side in pixels that this format allows. Uploads may be larger."""
        return _MOST_PX[self]


_MOST_PX = {Form.PNG: 2**31 - 1, Form.WEBP: 16_383, Form.JPEG: 65_500}


def converted(data: bytes, channel: Channel, form: Form, *, quality: int) -> bytes:
    """Convert a stored image to a format and a channel. Blocks the thread. Raises InvalidImage."""
    with Image.open(io.BytesIO(data)) as image:
        if image.width * image.height > _MOST_PIXELS:
            raise InvalidImage(f"The image has more than {_MOST_PIXELS} pixels.")
        picture = _channels(image, channel)
    if form is Form.JPEG:
        picture = picture.convert("RGB")
    if max(picture.size) > form.max_side_px:
        picture.thumbnail((form.max_side_px, form.max_side_px))
    out = io.BytesIO()
    picture.save(out, form.upper(), quality=quality)
    return out.getvalue()


def masked(original: bytes, mask: bytes) -> bytes:
    """Return the original image with the alpha channel of the mask, as a PNG. Blocks the thread.

    Both must be files that Darkroom has written. A mask of another size is resized.
    """
    with Image.open(io.BytesIO(original)) as image, Image.open(io.BytesIO(mask)) as drawn:
        picture = image.convert("RGB")
        alpha = _alpha(drawn)
    picture.putalpha(alpha if alpha.size == picture.size else alpha.resize(picture.size))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _channels(image: Image.Image, channel: Channel) -> Image.Image:
    if channel is Channel.RGB:
        return image.convert("RGB")
    if channel is Channel.A:
        alone = Image.new("RGBA", image.size)
        alone.putalpha(_alpha(image))
        return alone
    return image.copy()


def _alpha(image: Image.Image) -> Image.Image:
    """Return the alpha channel; fully opaque if the image has none."""
    return image.convert("RGBA").getchannel("A")


@router.get(twin("/view"), response_class=Response)
@router.head(twin("/view"), response_class=Response)
async def view(
    key: ReadProtocolKey,
    file_request: FileRequestDep,
    *,
    submission: SubmissionDep,
    access: JobAccessDep,
    filename: Annotated[str, Query(max_length=1000)],
    subfolder: str = "",
    type: Literal["output", "temp", "input"] = "output",
    preview: str = "",
    channel: Channel = Channel.RGBA,
) -> Response:
    """Serve a stored file, a smaller preview (`preview=webp;90`), or some of its channels."""
    file = await stored_file(access, key, filename, subfolder=subfolder, type=type)
    small = _PREVIEW.fullmatch(preview)
    is_whole = small is None and channel is Channel.RGBA
    if is_whole or file.media_type not in _CONVERTED:
        answer = await file_answer(
            file,
            file_request,
            access.files.images,
            cache_control=_CACHE_CONTROL,
        )
        answer.headers.update(_HEADERS)
        return answer
    picture = _Wanted(
        channel,
        Form(small["format"] if small else "png"),
        min(int((small and small["quality"]) or _QUALITY), 100),
    )
    async with access.bodies.reserve_memory(key.owner, file.size_bytes):
        data = await access.files.images.get(file.key)
        made = await submission.uploads.decodes.run(key.owner, picture.of, data, is_quick=False)
    return Response(made, headers=_HEADERS, media_type=picture.form.media_type)


@dataclass(frozen=True, slots=True)
class _Wanted:
    channel: Channel
    form: Form
    quality: int

    def of(self, data: bytes) -> bytes:
        return converted(data, self.channel, self.form, quality=self.quality)


async def stored_file(
    access: JobAccess, key: ApiKey, name: str, *, subfolder: str, type: str
) -> StoredFile:
    """Find an upload or a result by its name in ComfyUI's API. Raises ApiError 404, JobNotFound."""
    label = upload_label(name, type)
    upload = await access.uploads.find(key.owner, label) if is_upload_name(label) else None
    if upload is not None:
        return StoredFile.of_upload(upload)
    if type == "input":
        raise not_found("There is no such file.")
    return await stored_result(access, key, name, subfolder)


def upload_label(name: str, type: str) -> str:
    """Return the name under which an upload of ComfyUI's API is stored. Uploads have no folders.

    Each of ComfyUI's types has its own names: `cat.png`, `cat.png [output]` and `cat.png [temp]`.
    """
    name = name.rpartition("/")[2]
    return f"{name} [{type}]" if type in _TYPES_IN_NAMES else name


async def stored_result(access: JobAccess, key: ApiKey, name: str, subfolder: str) -> StoredFile:
    """Find a result by its name, with or without its folder. Any prefix of the name is accepted.

    Raises ApiError 404, JobNotFound.
    """
    result = ResultName.of(name)
    job_id = (result and result.job_id) or subfolder
    job = await access.jobs.owned(job_id, key, with_request=False)
    image = None if result is None else job.image(result.index)
    if result is None or image is None or not result.is_of(image) or subfolder not in {"", job.id}:
        raise not_found("There is no such file.")
    return StoredFile.of_image(image)


@router.post(twin("/upload/image"))
async def upload_image(
    request: Request, key: GenerateProtocolKey, submission: SubmissionDep
) -> dict[str, Any]:
    """Store an input image under its name, or under another one if the name is taken."""
    form_of = read_form(submission.bodies, request, key.owner, texts=_FORM_TEXTS)
    async with form_of as (name, data, form):
        return await _store(submission, key, form, name=name, data=data)


@router.post(twin("/upload/mask"))
async def upload_mask(
    request: Request, key: GenerateProtocolKey, submission: SubmissionDep, access: JobAccessDep
) -> dict[str, Any]:
    """Store a copy of the image in `original_ref`, with the alpha channel of the sent image."""
    form_of = read_form(access.bodies, request, key.owner, texts=_FORM_TEXTS)
    async with form_of as (name, data, form):
        file = await _original(access, key, form)
        async with access.bodies.reserve_memory(key.owner, file.size_bytes):
            original = await access.files.images.get(file.key)
            picture = await submission.uploads.decodes.run(
                key.owner,
                _masked,
                original,
                data,
                submission.uploads.max_pixels,
                is_quick=False,
            )
        return await _store(submission, key, form, name=name, data=picture)


async def _store(
    submission: Submission, key: ApiKey, form: FormData, *, name: str, data: bytes
) -> dict[str, Any]:
    """Store an upload, which may replace a file of the same name. Return the answer.

    The answer repeats the requested folder, which is not stored.
    """
    uploads = submission.uploads
    add = uploads.add if form.get("overwrite") in ("true", "1") else uploads.add_beside
    folder, type = form.get("subfolder"), form.get("type")
    type = type if isinstance(type, str) and type in _TYPES_IN_NAMES else "input"
    # A graph with the name in the answer must get this file, so the name has no mark of its own.
    stored = await add(key.owner, upload_label(without_folders(name), type), data)
    return {
        "name": without_folder(stored.name),
        "subfolder": folder if isinstance(folder, str) else "",
        "type": type,
    }


def _masked(original: bytes, mask: bytes, max_pixels: int) -> bytes:
    return masked(original, read_input_image(mask, max_pixels=max_pixels).data)


async def _original(access: JobAccess, key: ApiKey, form: FormData) -> StoredFile:
    """Return the image that `original_ref` names. Raises ApiError 400, 404, JobNotFound."""
    text = form.get("original_ref")
    try:
        named = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        named = None
    if not isinstance(named, dict) or not isinstance(named.get("filename"), str):
        raise invalid("original_ref does not name a file.")
    file = await stored_file(
        access,
        key,
        named["filename"],
        subfolder=str(named.get("subfolder", "")),
        type=str(named.get("type", "output")),
    )
    if not file.media_type.startswith("image/"):
        raise invalid("original_ref does not name an image.")
    return file
