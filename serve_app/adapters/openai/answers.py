"""The pictures of a job as the answer of a request that has waited for them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import Response

from events.job import Job
from events.result import failure_code, is_retryable
from events.types import Cancelled, Completed, Failed, ImageStored
from serve_app.adapters.openai.errors import RETRY
from serve_app.adapters.openai.parameters import ImageParameters
from serve_app.adapters.pictures import base64_of, json_in_parts
from serve_app.adapters.waiting import failure_status
from serve_app.api_error import ApiError
from serve_app.replica import Replica
from storage.images import ImageStore
from storage.keys import PNG


async def images_answer(replica: Replica, job: Job, asked: ImageParameters) -> Response:
    """Raises ApiError where the job has failed, ImageStoreError."""
    images = images_of(job)
    told = {
        "created": int((job.ended_at or job.submitted_at).timestamp()),
        "request_id": job.id,
        **picture_members(images[0], asked),
    }
    if asked.has_urls:
        url_for = replica.services.url_for
        data = [{"url": url_for(job.id, image)} for image in images]
        body = json.dumps({**told, "data": data}).encode()
        return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")
    parts = _body(replica.services.images, told, images)
    return await json_in_parts(replica, parts)


def images_of(job: Job) -> Sequence[ImageStored]:
    """The pictures of a job that has ended, in order. Raises ApiError where there are none."""
    if not isinstance(job.end, Completed):
        raise failed(job)
    images = sorted(job.images, key=lambda image: image.index)
    if not images:
        raise ApiError(500, "no_images", f"The job {job.id} has made no picture.")
    return images


def failed(job: Job) -> ApiError:
    """A job that has ended without a picture, or has not ended by now."""
    told = {"request_id": job.id}
    end = job.end
    if not isinstance(end, Failed | Cancelled):
        message = (
            f"The job {job.id} has not ended yet, and goes on. Its result is at "
            f"/v1/jobs/{job.id}/result."
        )
        return ApiError(504, "not_ended", message, extra_info=told, headers={RETRY: "false"})
    code = failure_code(end)
    headers = {RETRY: "true" if is_retryable(code) else "false"}
    return ApiError(failure_status(code), code, end.message, extra_info=told, headers=headers)


def picture_members(image: ImageStored, asked: ImageParameters) -> dict[str, Any]:
    """What their answers and events say of pictures."""
    return {
        "background": "opaque",
        "output_format": (image.media_type or PNG).removeprefix("image/"),
        "quality": asked.quality,
        "size": f"{image.width}x{image.height}",
    }


async def _body(
    store: ImageStore, told: dict[str, Any], images: Sequence[ImageStored]
) -> AsyncGenerator[bytes]:
    """JSON; the first part has the beginning of a picture."""
    before = json.dumps(told).removesuffix("}").encode() + b', "data": [{"b64_json": "'
    for image in images:
        async for part in base64_of(store, image):
            yield before + part
            before = b""
        before = b'"}, {"b64_json": "'
    yield b'"}]}'
