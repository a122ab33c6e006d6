"""Route of the images. A URL is a capability: whoever has it may fetch the image without a key."""

from __future__ import annotations

import math
import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from events.ids import is_job_id
from events.types import ImageStored
from serve_app.errors import ApiError, not_found
from serve_app.job_state import current_job
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep
from serve_app.services import Services
from storage.keys import PNG, SAFETENSORS, file_name
from storage.tokens import is_file_token

_NAME = re.compile(r"(?P<index>0|[1-9][0-9]{0,5})\.[a-z]+")
_RANGE = re.compile(r"bytes=(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})")
_YEAR_S = 31_536_000
_PATH = "/{request_id}/{name}"

router = APIRouter(prefix="/files", tags=["files"], responses=documented(400, 404, 500, 503))


def _image(description: str) -> dict[str, Any]:
    binary = {"schema": {"type": "string", "format": "binary"}}
    content = {PNG: binary, SAFETENSORS: binary}
    return {"description": description, "content": content}


_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: _image("The image"),
    206: _image("The part of the image that Range names"),
    304: {"description": "The image is the one that If-None-Match names"},
    **documented(410, 416),
}
Expires = Annotated[
    int | None, Query(ge=0, le=10**11, description="As in the URL; where it has none, absent")
]
Token = Annotated[str, Query(description="As in the URL that a result has")]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match")]
IfRange = Annotated[str | None, Header(alias="If-Range")]
Range = Annotated[str | None, Header(alias="Range", description="One range of bytes")]


@router.head(_PATH, response_class=Response, include_in_schema=False)
@router.get(_PATH, response_class=Response, responses=_ANSWERS)
async def get_file(
    request: Request,
    request_id: str,
    name: str,
    replica: ReplicaDep,
    *,
    token: Token = "",
    expires: Expires = None,
    if_none_match: IfNoneMatch = None,
    if_range: IfRange = None,
    range_: Range = None,
) -> Response:
    """An image (or a latent), or a part of it. Its bytes never change."""
    services = replica.services
    image = await _find(services, request_id, name, token=token, expires=expires)
    left_s = _require_time(expires, ttl_s=services.http_settings.image_url_ttl_s)
    headers = _headers(image, max_age_s=left_s)
    media_type = image.media_type or PNG
    if _matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    if request.method == "HEAD":
        headers["Content-Length"] = str(image.size_bytes)
        return Response(headers=headers, media_type=media_type)
    part = _requested_range(range_, image) if if_range in {None, headers["ETag"]} else None
    if part is None:
        data = await services.images.get(image.key)
        return Response(data, headers=headers, media_type=media_type)
    data = await services.images.get(image.key, part)
    headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{image.size_bytes}"
    return Response(data, 206, headers, media_type=media_type)


def _require_time(expires: int | None, *, ttl_s: float) -> int:
    """For how many seconds the URL still works. Raises ApiError 410.

    A URL without an end stops working when URLs get one.
    """
    left_s = _YEAR_S if expires is None else math.floor(expires - time.time())
    if left_s <= 0 or (ttl_s and expires is None):
        message = "This URL has expired. The job's result has a new one."
        raise ApiError(410, "url_expired", message)
    return min(left_s, _YEAR_S)


async def _find(
    services: Services, request_id: str, name: str, *, token: str, expires: int | None
) -> ImageStored:
    """Answers 404 alike for a wrong token and for an image that does not exist."""
    parts = _NAME.fullmatch(name)
    secret = services.secret
    if (
        parts is None
        or not is_job_id(request_id)
        or not is_file_token(token, secret=secret, job_id=request_id, name=name, expires=expires)
    ):
        raise not_found("There is no such file.")
    job = await current_job(services, request_id, with_request=False)
    image = None if job is None else job.image(int(parts["index"]))
    if image is None or name != file_name(image.index, image.media_type):
        raise not_found("There is no such file.")
    return image


def _headers(image: ImageStored, *, max_age_s: int) -> dict[str, str]:
    return {
        "ETag": f'"{image.digest}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": f"private, max-age={max_age_s}, immutable",
        "X-Content-Type-Options": "nosniff",
    }


def _matches(if_none_match: str | None, etag: str) -> bool:
    """Weak comparison, as If-None-Match asks for (RFC 9110, 13.1.2)."""
    listed = [] if if_none_match is None else if_none_match.split(",")
    return any(each.strip().removeprefix("W/") in {etag, "*"} for each in listed)


def _requested_range(header: str | None, image: ImageStored) -> range | None:
    """The bytes that a header with one range names (RFC 9110, 14.1.2).

    None, which stands for the whole image, for any other header; a server may answer several ranges
    so. Raises ApiError 416.
    """
    named = _RANGE.fullmatch(header or "")
    if named is None or not (named["first"] or named["last"]):
        return None
    size = image.size_bytes
    if not named["first"]:
        part = range(max(size - int(named["last"]), 0), size)
    else:
        first, last = int(named["first"]), int(named["last"] or size)
        if last < first:
            return None
        part = range(first, min(last + 1, size))
    if not part:
        headers = {"Content-Range": f"bytes */{size}"}
        message = f"The image has {size} bytes, none of them in this range."
        raise ApiError(416, "range_not_satisfiable", message, headers=headers)
    return part
