"""Input images and latents for workflows: uploaded, listed, removed. Each belongs to the owner of
the key.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import unicodedata
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from events.ids import is_job_id, new_id
from events.log import utc_now
from events.store.records import Upload
from events.types import InputFile
from serve_app.acceptance.checker import Asked, Checker
from serve_app.auth import Generator, Reader
from serve_app.body import bounded, too_large
from serve_app.errors import ApiError, documented, not_found
from serve_app.services import Services, ServicesGiven
from serve_app.uploads.images import UploadRefused, read_input_image
from serve_app.uploads.latents import read_input_latent
from storage.keys import upload_key

_FIELD = "image"
_LATENT_SUFFIX = ".latent"
_FORM_BYTES = 64 * 1024
"""Room for what a form has beside its file."""
_MAX_FIELDS = 16
_LISTED_NAMES = 20
_SEPARATORS = re.compile(r"[/\\]")
_CONTROL = {"Cc", "Cs", "Zl", "Zp"}
_DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
"""Characters that turn the order of a text: they make a name look like another."""

router = APIRouter(
    prefix="/v1/uploads", tags=["uploads"], responses=documented(400, 401, 403, 500, 503)
)

_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [_FIELD],
                    "properties": {
                        _FIELD: {
                            "type": "string",
                            "format": "binary",
                            "description": "A PNG, JPEG or WebP image with its file name; or a "
                            "latent, as SaveLatent writes it, whose name ends in `.latent`",
                        },
                    },
                }
            }
        },
    }
}


class UploadItem(BaseModel):
    name: str = Field(description="What a workflow calls it: the file name, without folders")
    digest: str = Field(description="`sha256:` and hex, of what is kept of it")
    width: int = Field(description="Pixels; a latent's are those of its image")
    height: int = Field(description="Pixels")
    size_bytes: int = Field(description="Of what is kept of it")
    created_at: datetime


class UploadPage(BaseModel):
    uploads: list[UploadItem] = Field(description="Newest first")
    next_cursor: str | None = Field(
        default=None, description="`cursor` of the next page; absent on the last"
    )


@router.post("", responses=documented(413, 415), openapi_extra=_FORM)
async def upload_image(request: Request, key: Generator, services: ServicesGiven) -> UploadItem:
    """Upload an input image or latent. The same name again stands for the new file from then on.

    An image is kept as a PNG of its pixels alone, a latent as its tensor alone. Form fields beside
    `image` are passed over.
    """
    settings = services.http_settings
    name, data = await _read_form(request, max_bytes=settings.max_upload_bytes)
    name = _label(name, max_chars=settings.max_upload_name_chars)
    is_latent = name.endswith(_LATENT_SUFFIX)
    read = read_input_latent if is_latent else read_input_image
    turn: asyncio.Semaphore = request.app.state.upload_turn
    try:
        async with turn:
            kept = await asyncio.to_thread(read, data, max_pixels=settings.max_upload_pixels)
    except UploadRefused as error:
        kind = "invalid_latent" if is_latent else "invalid_image"
        raise ApiError(400, kind, str(error)) from error
    now, upload_id = utc_now(), new_id()
    digest = f"sha256:{hashlib.sha256(kept.data).hexdigest()}"
    known = (await services.uploads.use(key.owner, [name], now)).get(name)
    if known is not None and known.digest == digest:
        return _item(known)
    upload = Upload(
        id=upload_id,
        owner=key.owner,
        name=name,
        digest=digest,
        storage_key=upload_key(key.owner, digest, upload_id),
        width=kept.width,
        height=kept.height,
        size_bytes=len(kept.data),
        created_at=now,
        used_at=now,
    )
    await services.images.put(upload.storage_key, kept.data)
    await services.uploads.add(upload)
    return _item(upload)


@router.get("", response_model_exclude_none=True)
async def list_uploads(
    key: Reader,
    services: ServicesGiven,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
) -> UploadPage:
    """The caller's input images, newest first."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(400, "invalid_request", "The cursor is not one that was answered here.")
    found = await services.uploads.page(key.owner, limit=limit + 1, before=cursor)
    page = found[:limit]
    next_cursor = page[-1].id if len(found) > limit else None
    return UploadPage(uploads=[_item(upload) for upload in page], next_cursor=next_cursor)


@router.delete("/{name}", status_code=204, response_class=Response, responses=documented(404))
async def remove_upload(name: str, key: Generator, services: ServicesGiven) -> None:
    """Remove an input image. Jobs that were accepted with it still get it."""
    if not await services.uploads.remove(key.owner, name, utc_now()):
        raise not_found("There is no such upload.")


async def resolve_input_files(
    services: Services, owner: str, content: Any, *, asked: Asked, checker: Checker
) -> dict[str, InputFile] | None:
    """The files that a workflow names, as they are now. Raises GraphInvalid for an unknown one."""
    if not asked.input_files:
        return None
    found = await services.uploads.use(owner, asked.input_files, utc_now())
    missing = set(asked.input_files) - found.keys()
    if missing:
        newest = await services.uploads.page(owner, limit=_LISTED_NAMES)
        listed = dict.fromkeys([*found, *(upload.name for upload in newest)])
        checker.require_files(content, [name for name in listed if name not in missing])
    return {
        name: InputFile(key=upload.storage_key, digest=upload.digest)
        for name, upload in found.items()
    }


async def _read_form(request: Request, *, max_bytes: int) -> tuple[str, bytes]:
    """File name and bytes of the form's file. Raises ApiError 400, 413, 415."""
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        message = "Send the image as a file of a form (multipart/form-data)."
        raise ApiError(415, "unsupported_media_type", message, details=content_type)
    stream = bounded(request, max_bytes=max_bytes + _FORM_BYTES)
    parser = MultiPartParser(
        request.headers, stream, max_files=1, max_fields=_MAX_FIELDS, max_part_size=_FORM_BYTES
    )
    parser.spool_max_size = max_bytes + _FORM_BYTES  # it is read whole, so no file is needed
    try:
        part = (await parser.parse()).get(_FIELD)
        if not isinstance(part, UploadFile) or not part.filename:
            raise _invalid(f"The form has no file named {_FIELD!r}.")
        name, data = part.filename, await part.read()
    except (MultiPartException, UnicodeError) as error:
        raise _invalid("The form cannot be read.", str(error)) from error
    except ClientDisconnect as error:
        raise _invalid("The form ended before it was complete.") from error
    finally:
        # Starlette itself does so where parsing fails, but not where a form has no end.
        for file in parser._files_to_close_on_error:
            file.close()
    if len(data) > max_bytes:
        raise too_large(max_bytes)
    return name, data


def _label(file_name: str, *, max_chars: int) -> str:
    """The last part of a file name, in one of the ways to write its letters (NFC)."""
    name = unicodedata.normalize("NFC", _SEPARATORS.split(file_name)[-1]).strip()
    if name in {"", ".", ".."}:
        raise _invalid("The file has no name.")
    if len(name) > max_chars:
        raise _invalid(f"The file's name is longer than {max_chars} characters.")
    if any(_is_odd(char) for char in name):
        raise _invalid("The file's name has control characters.")
    return name


def _is_odd(char: str) -> bool:
    return unicodedata.category(char) in _CONTROL or unicodedata.bidirectional(char) in _DIRECTIONS


def _invalid(message: str, details: str = "") -> ApiError:
    return ApiError(400, "invalid_upload", message, details=details)


def _item(upload: Upload) -> UploadItem:
    return UploadItem(
        name=upload.name,
        digest=upload.digest,
        width=upload.width,
        height=upload.height,
        size_bytes=upload.size_bytes,
        created_at=upload.created_at,
    )
