"""Route that serves the files of jobs. The URL of a file gives access to it without a key."""

from __future__ import annotations

import math
import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from events.ids import is_job_id
from serve_app.error_responses import ApiError, not_found
from serve_app.openapi.document import documented
from serve_app.replica import JobAccess, JobAccessDep
from serve_app.stored_file import FileRequestDep, StoredFile, file_answer
from storage.file_names import JPEG, PNG, SAFETENSORS, WEBP
from storage.service_secret import is_file_token

_NAME = re.compile(r"(?P<index>0|[1-9][0-9]{0,5})(-poster)?\.[a-z0-9]+")
_YEAR_S = 31_536_000
_PATH = "/{request_id}/{name}"

router = APIRouter(prefix="/files", tags=["files"], responses=documented(400, 404, 500, 503))


_ANSWERS: dict[int | str, dict[str, Any]] = {
    # The media types are omitted, because generators of clients would skip the route.
    200: {
        "description": f"The file: an image, `{PNG}`, `{WEBP}` or `{JPEG}`, a latent, "
        f"`{SAFETENSORS}`, the poster of a video, `{JPEG}`, or a file of another kind"
    },
    206: {"description": "The part of the file that the header Range requests"},
    304: {"description": "The image is unchanged: its ETag is in the header If-None-Match"},
    **documented(410, 416),
}
Expires = Annotated[
    int | None,
    Query(ge=0, le=10**11, description="The value in the URL of the result, if the URL has one"),
]
Token = Annotated[str, Query(description="The value in the URL of the result")]


@router.head(_PATH, response_class=Response, include_in_schema=False)
@router.get(_PATH, response_class=Response, responses=_ANSWERS)
async def get_file(
    request_id: str,
    name: str,
    file_request: FileRequestDep,
    access: JobAccessDep,
    *,
    token: Token = "",
    expires: Expires = None,
) -> Response:
    """Return a file of a job, or a part of its bytes. The bytes never change."""
    file = await _find(access, request_id, name, token=token, expires=expires)
    left_s = _require_time(expires, ttl_s=access.files.image_url_s)
    return await file_answer(
        file,
        file_request,
        access.files.images,
        cache_control=f"private, max-age={left_s}, immutable",
    )


def _require_time(expires: int | None, *, ttl_s: float) -> int:
    """Return the seconds for which the URL is still valid. Raises ApiError 410.

    A URL without an expiry is invalid if `DARKROOM_IMAGE_URL_TTL_S` is set.
    """
    left_s = _YEAR_S if expires is None else math.floor(expires - time.time())
    if left_s <= 0 or (ttl_s and expires is None):
        message = "This URL has expired. The job's result has a new one."
        raise ApiError(410, "url_expired", message)
    return min(left_s, _YEAR_S)


async def _find(
    access: JobAccess, request_id: str, name: str, *, token: str, expires: int | None
) -> StoredFile:
    """Return the file. Raises the same ApiError 404 for a wrong token and for a missing file."""
    parts = _NAME.fullmatch(name)
    secret = access.files.secret
    if (
        parts is None
        or not is_job_id(request_id)
        or not is_file_token(token, secret=secret, job_id=request_id, name=name, expires=expires)
    ):
        raise not_found("There is no such file.")
    job = await access.jobs.current(request_id, with_request=False)
    image = None if job is None else job.image(int(parts["index"]))
    if image is not None and name == image.name:
        return StoredFile.of_image(image)
    if image is not None and image.poster is not None and name == image.poster.name:
        return StoredFile.of_poster(image.poster)
    raise not_found("There is no such file.")
