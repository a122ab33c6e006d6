"""Routes of the uploads: input images and latents for workflows. Each belongs to one owner."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from events.ids import is_job_id
from events.log import utc_now
from events.store.records import Upload
from serve_app.api_error import ApiError, not_found
from serve_app.auth import GenerateKey, ReadKey
from serve_app.openapi.error_responses import documented
from serve_app.receiving.forms import FIELD, read_form
from serve_app.replica import ReplicaDep
from serve_app.sending.stored_file import AskedDep, StoredFile, file_answer
from storage.keys import PNG, SAFETENSORS

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
                    "required": [FIELD],
                    "properties": {
                        FIELD: {
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


@router.post("", responses=documented(408, 413, 415), openapi_extra=_FORM)
async def upload_image(request: Request, key: GenerateKey, replica: ReplicaDep) -> UploadItem:
    """Upload an input image or latent. The same name again stands for the new file from then on.

    An image is kept as a PNG of its pixels alone, a latent as its tensor alone. Form fields beside
    `image` are passed over.
    """
    async with read_form(replica, request, key.owner) as (file_name, data, _):
        return _item(await replica.upload_store.add(key.owner, file_name, data))


@router.get("", response_model_exclude_none=True)
async def list_uploads(
    key: ReadKey,
    replica: ReplicaDep,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the page before")] = None,
) -> UploadPage:
    """The caller's input images, newest first."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(400, "invalid_request", "The cursor is not one that was answered here.")
    found = await replica.services.uploads.page(key.owner, limit=limit + 1, before=cursor)
    page = found[:limit]
    next_cursor = page[-1].id if len(found) > limit else None
    return UploadPage(uploads=[_item(upload) for upload in page], next_cursor=next_cursor)


@router.get(
    "/{name}",
    response_class=Response,
    # Without its media type, for which generators of clients leave a route out.
    responses={
        200: {"description": f"The file as it is kept: `{PNG}`, or a latent, `{SAFETENSORS}`"},
        206: {"description": "The part of it that Range names"},
        304: {"description": "The file is the one that If-None-Match names"},
        **documented(404, 416),
    },
)
async def read_upload(name: str, key: ReadKey, asked: AskedDep, replica: ReplicaDep) -> Response:
    """An input image or latent as it is kept, or a part of it."""
    services = replica.services
    upload = await services.uploads.find(key.owner, name)
    if upload is None:
        raise not_found("There is no such upload.")
    return await file_answer(
        StoredFile.of_upload(upload),
        asked,
        services.images,
        cache_control="private, no-cache",
        send_timeout_s=services.http_settings.silence_timeout_s,
    )


@router.delete("/{name}", status_code=204, response_class=Response, responses=documented(404))
async def remove_upload(name: str, key: GenerateKey, replica: ReplicaDep) -> None:
    """Remove an input image. Jobs that were accepted with it still get it."""
    if not await replica.services.uploads.remove(key.owner, name, utc_now()):
        raise not_found("There is no such upload.")


def _item(upload: Upload) -> UploadItem:
    return UploadItem(
        name=upload.name,
        digest=upload.digest,
        width=upload.width,
        height=upload.height,
        size_bytes=upload.size_bytes,
        created_at=upload.created_at,
    )
