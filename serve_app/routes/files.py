"""Route of the images. A URL is a capability: whoever has it may fetch the image without a key."""

from __future__ import annotations

import math
import re
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from events.ids import is_job_id
from events.types import ImageStored
from serve_app.api_error import ApiError, not_found
from serve_app.job_state import current_job
from serve_app.openapi.error_responses import documented
from serve_app.replica import ReplicaDep
from serve_app.sending.stored_file import AskedDep, StoredFile, file_answer
from serve_app.services import Services
from storage.keys import JPEG, PNG, SAFETENSORS, WEBP, file_name
from storage.tokens import is_file_token

_NAME = re.compile(r"(?P<index>0|[1-9][0-9]{0,5})\.[a-z]+")
_YEAR_S = 31_536_000
_PATH = "/{request_id}/{name}"

router = APIRouter(prefix="/files", tags=["files"], responses=documented(400, 404, 500, 503))


_ANSWERS: dict[int | str, dict[str, Any]] = {
    # Without their media types, for which generators of clients leave a route out.
    200: {
        "description": f"The image, `{PNG}`, `{WEBP}` or `{JPEG}`, or the latent, `{SAFETENSORS}`"
    },
    206: {"description": "The part of it that Range names"},
    304: {"description": "The image is the one that If-None-Match names"},
    **documented(410, 416),
}
Expires = Annotated[
    int | None, Query(ge=0, le=10**11, description="As in the URL; where it has none, absent")
]
Token = Annotated[str, Query(description="As in the URL that a result has")]


@router.head(_PATH, response_class=Response, include_in_schema=False)
@router.get(_PATH, response_class=Response, responses=_ANSWERS)
async def get_file(
    request_id: str,
    name: str,
    asked: AskedDep,
    replica: ReplicaDep,
    *,
    token: Token = "",
    expires: Expires = None,
) -> Response:
    """An image (or a latent), or a part of it. Its bytes never change."""
    services = replica.services
    image = await _find(services, request_id, name, token=token, expires=expires)
    left_s = _require_time(expires, ttl_s=services.http_settings.image_url_ttl_s)
    return await file_answer(
        StoredFile.of_image(image),
        asked,
        services.images,
        cache_control=f"private, max-age={left_s}, immutable",
        send_timeout_s=services.http_settings.silence_timeout_s,
    )


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
