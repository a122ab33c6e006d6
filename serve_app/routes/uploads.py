"""Routes of uploads, which are input files of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from events.ids import is_job_id
from events.log import utc_now
from events.store.records import Upload
from serve_app.auth import GenerateKey, ReadKey
from serve_app.bodies import FIELD, read_form
from serve_app.error_responses import ApiError, not_found
from serve_app.file_signatures import MEDIA_SUFFIXES
from serve_app.openapi.document import documented
from serve_app.refusals import InvalidUploadName
from serve_app.replica import JobAccessDep, SubmissionDep
from serve_app.stored_file import FileRequestDep, StoredFile, file_answer
from storage.file_names import without_folders

router = APIRouter(
    prefix="/v1/uploads", tags=["uploads"], responses=documented(400, 401, 403, 500, 503)
)

_SUFFIXES = ", ".join(f"`.{each}`" for each in MEDIA_SUFFIXES)
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
                            "description": "A file with its name: a PNG, JPEG or WebP image, a "
                            "video or audio file whose suffix fits its content "
                            f"({_SUFFIXES}), or a latent in the format of SaveLatent with "
                            "the suffix `.latent`",
                        },
                    },
                }
            }
        },
    }
}


class UploadItem(BaseModel):
    name: str = Field(description="The name in a workflow: the file name without folders")
    digest: str = Field(description="`sha256:` and the hexadecimal digest of the stored file")
    media_type: str = Field(description="The media type of the stored file")
    width: int | None = Field(
        default=None,
        description="Width in pixels. For a latent, the width of its decoded image; absent for a "
        "video or an audio file",
    )
    height: int | None = Field(default=None, description="Pixels; absent for a video or audio file")
    size_bytes: int = Field(description="The size of the stored file")
    created_at: datetime


class UploadPage(BaseModel):
    uploads: list[UploadItem] = Field(description="Newest first")
    next_cursor: str | None = Field(
        default=None, description="The `cursor` of the next page; absent on the last page"
    )


@router.post(
    "",
    response_model_exclude_none=True,
    responses=documented(408, 413, 415),
    openapi_extra=_FORM,
)
async def upload_image(request: Request, key: GenerateKey, submission: SubmissionDep) -> UploadItem:
    """Upload an image, a video, an audio file or a latent. An upload replaces an earlier upload
    with the same name. Only the pixels of an image are stored, as a PNG, and only the tensor of a
    latent. Video and audio files are stored as they are sent. Form fields other than `image` are
    ignored.
    """
    async with read_form(submission.bodies, request, key.owner) as (file_name, data, _):
        if without_folders(file_name.strip()) != file_name.strip():
            raise InvalidUploadName(
                "A name must not end with [input], [output] or [temp], because a graph means a "
                "folder by them."
            )
        return _item(await submission.uploads.add(key.owner, file_name, data))


@router.get("", response_model_exclude_none=True)
async def list_uploads(
    key: ReadKey,
    access: JobAccessDep,
    *,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page")] = None,
) -> UploadPage:
    """List the caller's uploads, newest first."""
    if cursor is not None and not is_job_id(cursor):
        raise ApiError(
            400,
            "invalid_request",
            "The cursor is not valid. Use the `next_cursor` of an earlier answer.",
        )
    found = await access.uploads.page(key.owner, limit=limit + 1, before=cursor)
    page = found[:limit]
    next_cursor = page[-1].id if len(found) > limit else None
    return UploadPage(uploads=[_item(upload) for upload in page], next_cursor=next_cursor)


@router.get(
    "/{name}",
    response_class=Response,
    # The media type is omitted, because generators of clients would skip the route.
    responses={
        200: {"description": "The stored file. An image is a PNG"},
        206: {"description": "The part of the file that the header Range requests"},
        304: {"description": "The file is unchanged: its ETag is in the header If-None-Match"},
        **documented(404, 416),
    },
)
async def read_upload(
    name: str, key: ReadKey, file_request: FileRequestDep, access: JobAccessDep
) -> Response:
    """Return the stored file of an upload, or a part of the file."""
    upload = await access.uploads.find(key.owner, name)
    if upload is None:
        raise not_found("There is no such upload.")
    return await file_answer(
        StoredFile.of_upload(upload),
        file_request,
        access.files.images,
        cache_control="private, no-cache",
    )


@router.delete("/{name}", status_code=204, response_class=Response, responses=documented(404))
async def remove_upload(name: str, key: GenerateKey, submission: SubmissionDep) -> None:
    """Remove an upload. Jobs that were accepted before can still use the upload."""
    if not await submission.uploads.rows.remove(key.owner, name, utc_now()):
        raise not_found("There is no such upload.")


def _item(upload: Upload) -> UploadItem:
    return UploadItem(
        name=upload.name,
        digest=upload.digest,
        media_type=StoredFile.of_upload(upload).media_type,
        width=upload.width or None,
        height=upload.height or None,
        size_bytes=upload.size_bytes,
        created_at=upload.created_at,
    )
