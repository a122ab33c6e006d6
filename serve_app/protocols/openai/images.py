"""Routes of OpenAI's images API. The answer has the images of an ended job, or is a stream."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.sse import format_sse_event

from events.errors import ServiceError
from events.job import Job
from events.log import utc_now
from events.result import failure_code, is_retryable, notes_of
from events.store.records import ApiKey, Scope
from events.types import Cancelled, Completed, Failed, ImageStored
from serve_app.auth import key_check
from serve_app.error_responses import ApiError
from serve_app.live.listener import Listener, LiveEvent
from serve_app.live.messages import KEEP_ALIVE
from serve_app.live.progress import Newest, newest_of
from serve_app.live.streams import EventStream
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.protocols.notes import note_headers
from serve_app.protocols.openai.errors import RETRY, error_object
from serve_app.protocols.openai.models import one_model
from serve_app.protocols.openai.requests import (
    ImageRequest,
    VariationParameters,
    edit,
    generation,
)
from serve_app.protocols.waiting import JOB_ID_HEADER, MAX_WAIT_S, ended_job, failure_status
from serve_app.replica import JobAccess, JobAccessDep, Submission, SubmissionDep
from serve_app.routes.generate import IdempotencyKey
from serve_app.stored_file import base64_of, json_in_parts
from storage.file_names import PNG
from storage.images import ImageStore, ImageStoreError

_NO_TOKENS = {
    "input_tokens": 0,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 0},
    "output_tokens": 0,
    "total_tokens": 0,
}
"""The member `usage`, which typed clients require. Darkroom does not count tokens."""
IMAGES = "/v1/images"

router = APIRouter(include_in_schema=False)


async def images_answer(access: JobAccess, job: Job, image_request: ImageRequest) -> Response:
    """Build the response. Raises ApiError if the job has failed, and ImageStoreError."""
    images = images_of(job)
    told = {
        "created": int((job.ended_at or job.submitted_at).timestamp()),
        "request_id": job.id,
        **_members_of(job, images[0], image_request),
    }
    if image_request.parameters.has_urls:
        url_for = access.files.url_for
        data = [{"url": url_for(job.id, image)} for image in images]
        body = json.dumps({**told, "data": data}).encode()
        headers = {"Cache-Control": "no-store", **note_headers(job)}
        return Response(body, headers=headers, media_type="application/json")
    parts = _body(access.files.images, told, images)
    answer = await json_in_parts(parts)
    answer.headers.update(note_headers(job))
    return answer


def images_of(job: Job) -> Sequence[ImageStored]:
    """Return the images of an ended job, in order. Raises ApiError if there are none."""
    if not isinstance(job.end, Completed):
        raise failed(job)
    images = sorted(job.images, key=lambda image: image.index)
    if not images:
        raise ApiError(500, "no_images", f"The job {job.id} has made no image.")
    return images


def failed(job: Job) -> ApiError:
    """Build the error for a job that has failed, was cancelled or has not ended yet."""
    told = {"request_id": job.id}
    end = job.end
    if not isinstance(end, Failed | Cancelled):
        message = (
            f"The job {job.id} is still running. Its result will be at /v1/jobs/{job.id}/result."
        )
        return ApiError(504, "not_ended", message, extra_info=told, headers={RETRY: "false"})
    code = failure_code(end)
    headers = {RETRY: "true" if is_retryable(code) else "false"}
    return ApiError(failure_status(code), code, end.message, extra_info=told, headers=headers)


def _members_of(job: Job, image: ImageStored, image_request: ImageRequest) -> dict[str, Any]:
    """Return the members that describe an image in answers and events of the OpenAI API.

    Only Darkroom has the member `notes`, with the notes of the request and of its job.
    """
    told: dict[str, Any] = {
        "background": "opaque",
        "output_format": (image.media_type or PNG).removeprefix("image/"),
        "quality": image_request.parameters.quality,
        "size": f"{image.width}x{image.height}",
    }
    notes = [*image_request.notes, *(notes_of(job) or ())]
    return {**told, "notes": notes} if notes else told


async def _body(
    store: ImageStore, told: dict[str, Any], images: Sequence[ImageStored]
) -> AsyncGenerator[bytes]:
    """Yield the JSON body in parts. Reading the first part reads an image (see `json_in_parts`)."""
    before = json.dumps(told).removesuffix("}").encode() + b', "data": [{"b64_json": "'
    for image in images:
        async for part in base64_of(store, image):
            yield before + part
            before = b""
        before = b'"}, {"b64_json": "'
    yield b'"}]}'


def image_stream(
    submission: Submission,
    access: JobAccess,
    request: Request,
    key: ApiKey,
    *,
    image_request: ImageRequest,
    event: str,
) -> EventStream:
    """Return a stream that submits the job and sends its events.

    The job is submitted when the stream opens, unless there are too many streams. `event` is the
    prefix of event names, such as `image_generation`. Opening the stream raises TooManyStreams and
    the errors of `Acceptance.accept`.
    """

    @asynccontextmanager
    async def open_stream() -> AsyncGenerator[AsyncGenerator[bytes]]:
        with access.live.streams.count_stream(key.owner, request.scope.get("server")):
            began = utc_now()
            job = await submission.acceptance.accept(image_request.job, began=began)
            # A caller that loses the connection finds the job by this header.
            stream.headers[JOB_ID_HEADER] = job.id
            told = _Stream(access, request, key, job, image_request, event)
            try:
                async with access.live.streams.watch(job) as (listener, _):
                    yield told.messages(listener)
            finally:
                if not told.is_told and image_request.job.idempotency_key is None:
                    submission.acceptance.cancel_abandoned(job.id)

    timeout_s = access.live.streams.send_timeout_s
    stream = EventStream(open_stream, send_timeout_s=timeout_s)
    return stream


@dataclass
class _Stream:
    access: JobAccess
    request: Request
    key: ApiKey
    job: Job
    image_request: ImageRequest
    event: str
    is_told: bool = field(default=False, init=False)
    """Whether the result or the error of the job was sent."""
    _previews: int = field(default=0, init=False)
    """The number of previews that were sent."""

    async def messages(self, listener: Listener) -> AsyncGenerator[bytes]:
        """Yield the messages of the stream. Raises SlowReader."""
        try:
            with newest_of(self.access.live.progress, self.job.id) as newest:
                async for part in self._until_end(listener, newest):
                    yield part
            async for part in self._completed():
                yield part
        except ImageStoreError:
            return  # The stream ends here, and the client can detect that it is incomplete.
        except ApiError as error:
            yield _error(error)
        except ServiceError:  # The log or the database is unavailable, or the job is erased.
            yield _error(failed(self.job))
        self.is_told = True

    async def _until_end(self, listener: Listener, newest: Newest) -> AsyncGenerator[bytes]:
        """Yield the events until the job ends or `MAX_WAIT_S` have passed."""
        go_on = key_check(self.request, self.key, Scope.GENERATE)
        now = asyncio.get_running_loop().time
        end_at = now() + MAX_WAIT_S
        keep_alive_s = self.access.live.streams.keep_alive_s
        check_at = now() + keep_alive_s
        yield KEEP_ALIVE
        while now() < end_at:
            self.job = await self.access.jobs.owned(self.job.id, self.key, with_request=False)
            if self.job.end is not None:
                return
            until = min(end_at, check_at)
            news: tuple[list[LiveEvent], list[bytes]] | None = ([], [])
            while news is not None and not news[0] and now() < until:
                if (preview := self._due(newest)) is not None:
                    yield preview
                news = await listener.next(max(until - now(), 0))
            if news is None:
                return
            if now() >= check_at:
                check_at = now() + keep_alive_s
                if not await go_on():
                    return
                yield KEEP_ALIVE

    def _due(self, newest: Newest) -> bytes | None:
        """Return a preview if one is due. Previews are spread over the steps of the job."""
        asked = self.image_request.parameters
        progress, preview = newest.take()
        due = (self._previews + 1) / (asked.partial_images + 1)
        if preview is None or progress is None or progress.fraction < due:
            return None
        if self._previews == asked.partial_images:
            return None
        self._previews += 1
        return _message(
            f"{self.event}.partial_image",
            b64_json=b64encode(preview).decode(),
            partial_image_index=self._previews - 1,
            background="opaque",
            output_format="jpeg",
            quality=asked.quality,
            size=asked.size,
        )

    async def _completed(self) -> AsyncGenerator[bytes]:
        """Yield the events of the images. Raises ApiError if there are none."""
        if self.job.end is None:
            raise failed(self.job)
        type = f"{self.event}.completed"
        for image in images_of(self.job):
            told = _members_of(self.job, image, self.image_request)
            whole = _message(type, **told, request_id=self.job.id, usage=_NO_TOKENS, b64_json="")
            # The last member, `b64_json`, is sent in parts.
            before = whole.rstrip().removesuffix(b'"}')
            async for part in base64_of(self.access.files.images, image):
                yield before + part
                before = b""
            yield b'"}\n\n'


def _error(error: ApiError) -> bytes:
    return format_sse_event(event="error", data_str=json.dumps({"error": error_object(error)}))


def _message(type: str, **members: Any) -> bytes:
    data = {"type": type, "created_at": int(time.time()), **members}
    return format_sse_event(event=type, data_str=json.dumps(data))


@router.get("/v1/models/{model:path}")
async def show_model(model: str, key: ReadProtocolKey, submission: SubmissionDep) -> dict[str, Any]:
    """Return a model that `GET /v1/models` lists."""
    return await one_model(submission, key, model)


@router.post(f"{IMAGES}/generations")
async def generate_images(
    request: Request,
    key: GenerateProtocolKey,
    submission: SubmissionDep,
    access: JobAccessDep,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    image_request = await generation(submission, request, key, idempotency_key)
    return await _answer(
        submission, access, request, key, image_request=image_request, event="image_generation"
    )


@router.post(f"{IMAGES}/edits")
async def edit_image(
    request: Request,
    key: GenerateProtocolKey,
    submission: SubmissionDep,
    access: JobAccessDep,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    image_request = await edit(submission, request, key, idempotency_key)
    return await _answer(
        submission, access, request, key, image_request=image_request, event="image_edit"
    )


@router.post(f"{IMAGES}/variations")
async def vary_image(
    request: Request,
    key: GenerateProtocolKey,
    submission: SubmissionDep,
    access: JobAccessDep,
    *,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Edit an image without a prompt."""
    image_request = await edit(submission, request, key, idempotency_key, model=VariationParameters)
    return await _answer(
        submission, access, request, key, image_request=image_request, event="image_edit"
    )


async def _answer(
    submission: Submission,
    access: JobAccess,
    request: Request,
    key: ApiKey,
    *,
    image_request: ImageRequest,
    event: str,
) -> Response:
    if image_request.parameters.stream:
        return image_stream(
            submission, access, request, key, image_request=image_request, event=event
        )
    job = await ended_job(submission, access, request, key, wanted=image_request.job)
    if job.end is None:
        raise failed(job)
    return await images_answer(access, job, image_request)
