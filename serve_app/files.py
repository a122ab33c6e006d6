"""Images by URL. The URL is a capability: whoever has it may fetch the image, with no key."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from events.ids import is_job_id
from events.types import ImageStored
from serve_app.errors import documented, not_found
from serve_app.job_state import current_job
from serve_app.services import Services, ServicesGiven
from storage.tokens import is_file_token

_NAME = re.compile(r"(?P<index>0|[1-9][0-9]{0,5})\.png")
_PNG = "image/png"

router = APIRouter(prefix="/files", tags=["files"], responses=documented(400, 404, 500, 503))

_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The image",
        "content": {_PNG: {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "The image is the one that If-None-Match names"},
}
Token = Annotated[str, Query(description="As in the URL that a result has")]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match")]


@router.get("/{request_id}/{name}", response_class=Response, responses=_ANSWERS)
async def get_file(
    request_id: str,
    name: str,
    services: ServicesGiven,
    *,
    token: Token = "",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """An image. Its bytes never change."""
    image = await _find(services, request_id, name, token=token)
    headers = _headers(image)
    if _matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(await services.images.get(image.key), headers=headers, media_type=_PNG)


@router.head("/{request_id}/{name}", response_class=Response, include_in_schema=False)
async def head_file(
    request_id: str,
    name: str,
    services: ServicesGiven,
    *,
    token: Token = "",
    if_none_match: IfNoneMatch = None,
) -> Response:
    """As `get_file`, without reading the image."""
    image = await _find(services, request_id, name, token=token)
    headers = _headers(image)
    if _matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(headers={**headers, "Content-Length": str(image.size_bytes)}, media_type=_PNG)


async def _find(services: Services, request_id: str, name: str, *, token: str) -> ImageStored:
    """A wrong token and an image that is not there are one and the same 404."""
    parts = _NAME.fullmatch(name)
    secret = services.settings.secret_bytes
    if (
        parts is None
        or not is_job_id(request_id)
        or not is_file_token(token, secret=secret, job_id=request_id, name=name)
    ):
        raise not_found("There is no such file.")
    job = await current_job(services, request_id)
    image = None if job is None else job.image(int(parts["index"]))
    if image is None:
        raise not_found("There is no such file.")
    return image


def _headers(image: ImageStored) -> dict[str, str]:
    return {
        "ETag": f'"{image.digest}"',
        "Cache-Control": "private, max-age=31536000, immutable",
        "X-Content-Type-Options": "nosniff",
    }


def _matches(if_none_match: str | None, etag: str) -> bool:
    """Weak comparison, as If-None-Match asks for (RFC 9110, 13.1.2)."""
    listed = [] if if_none_match is None else if_none_match.split(",")
    return any(each.strip().removeprefix("W/") in {etag, "*"} for each in listed)
