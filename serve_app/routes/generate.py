"""Routes that accept or check jobs of both flavours. Each flavour has two paths for submissions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, Field

from events.job import Job
from events.log import utc_now
from events.result import ResultResponse, UrlFor, result_of
from events.types import Flavour, JobCost
from serve_app.acceptance.request import (
    checked_callback_events,
    events_before_end,
    generate_request,
)
from serve_app.auth import GenerateKey
from serve_app.openapi.document import callback_routes, documented, operation_id, request_body
from serve_app.replica import ReadingDep, SubmissionDep
from serve_app.routes.direct_route import DirectRoute
from settings.keys import ImageFormat

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

EndpointId = Annotated[str, Query(description="The endpoint that runs the job")]
CallbackUrl = Annotated[
    str | None,
    Query(
        description="A public http or https address to which Darkroom sends the result when the "
        "job ends",
        examples=["https://example.com/task_completed"],
    ),
]
CallbackEvents = Annotated[
    str | None,
    AfterValidator(checked_callback_events),
    Query(
        description="The events that send a callback, separated by commas: `started`, `image` "
        "(once for each stored image) and `completed`, which is required. Absent: "
        "only `completed`",
        examples=["started,image,completed"],
    ),
]
Alone = Annotated[
    bool,
    Query(
        description="Run the job without sharing model calls with other jobs. The images then do "
        "not depend on other jobs, not even by rounding of floats. The job takes longer"
    ),
]
Preview = Annotated[
    bool,
    Query(description="Send previews of the unfinished image on the event stream of the job"),
]
Format = Annotated[
    ImageFormat | None,
    Query(
        description="The format of the images. Absent: the format of the key, which is PNG by "
        "default"
    ),
]
Quality = Annotated[
    int | None,
    Query(
        ge=1,
        le=100,
        description="The quality of WebP and JPEG; a WebP of 100 is lossless. Absent: the quality "
        "of the key, which is 90 by default",
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x20-\x7e]+$",
        description="1 to 255 printable ASCII characters. If the same caller sends the same "
        "request with the same key again, no second job is created",
    ),
]

Handler = Callable[..., Awaitable[Response]]


class CheckAnswer(BaseModel):
    images: int = Field(description="The number of images; 0 if it is not known before the run")
    cost: JobCost


router = APIRouter(
    tags=["generate"],
    route_class=DirectRoute,
    generate_unique_id_function=operation_id,
    responses=documented(400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 503),
)


def _add_generate(flavour: Flavour, description: str) -> None:
    """Add both paths of a flavour. `description` is for the OpenAPI document."""
    generate = _generate(flavour)
    location = {"description": "Path of the job's result", "schema": {"type": "string"}}
    accepted = {
        "model": ResultResponse,
        "description": "The job was accepted and stored",
        "headers": {"Location": location},
    }
    for path in (f"/{flavour}/v1/generate", f"/api/v1/{flavour}/generate"):
        router.add_api_route(
            path,
            generate,
            methods=["POST"],
            name=f"generate_{flavour}",
            description=description,
            status_code=202,
            response_model=None,
            responses={202: accepted},
            openapi_extra={"requestBody": request_body(flavour)},
            callbacks=callback_routes(path),
        )


def _generate(flavour: Flavour) -> Handler:
    async def generate(
        request: Request,
        key: GenerateKey,
        submission: SubmissionDep,
        reading: ReadingDep,
        *,
        endpoint: EndpointId = "default",
        callback_url: CallbackUrl = None,
        callback_events: CallbackEvents = None,
        alone: Alone = False,
        preview: Preview = False,
        image_format: Format = None,
        image_quality: Quality = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Response:
        began = utc_now()
        async with submission.bodies.json_with_images(request, key.owner) as (body, content):
            job = await submission.acceptance.accept(
                await generate_request(
                    flavour=flavour,
                    key=key,
                    endpoint=endpoint,
                    body=body,
                    content=content,
                    max_bytes=submission.bodies.max_bytes,
                    callback_url=callback_url,
                    callback_events=events_before_end(callback_events, callback_url),
                    alone=alone,
                    preview=preview,
                    image_format=image_format,
                    image_quality=image_quality,
                    idempotency_key=idempotency_key,
                    traceparent=traceparent_of(request),
                ),
                began=began,
            )
        return _accepted(request, job, reading.files.url_for)

    return generate


def traceparent_of(request: Request) -> str | None:
    """Return the `traceparent` header of the request if it is well-formed."""
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _accepted(request: Request, job: Job, url_for: UrlFor) -> Response:
    result_path = _result_path(request.scope["path"], job.submitted.flavour)
    headers = {"Location": f"{result_path}?request_id={job.id}"}
    return Response(result_of(job, url_for).body(), 202, headers, media_type="application/json")


def _result_path(generate_path: str, flavour: Flavour) -> str:
    """Return the path of the result, with the same prefix as the path of the request."""
    if generate_path.startswith("/api/v1/"):
        return f"/api/v1/{flavour}/result"
    return f"/{flavour}/v1/result"


def _add_check(flavour: Flavour, description: str) -> None:
    router.add_api_route(
        f"/{flavour}/v1/check",
        _check(flavour),
        methods=["POST"],
        name=f"check_{flavour}",
        description=description,
        response_model=None,
        responses={200: {"model": CheckAnswer, "description": "The request would be accepted now"}},
        openapi_extra={"requestBody": request_body(flavour)},
    )


def _check(flavour: Flavour) -> Handler:
    async def check(
        request: Request,
        key: GenerateKey,
        submission: SubmissionDep,
        *,
        endpoint: EndpointId = "default",
    ) -> Response:
        async with submission.bodies.json_with_images(request, key.owner) as (body, content):
            asked = await generate_request(
                flavour=flavour,
                key=key,
                endpoint=endpoint,
                body=body,
                content=content,
                max_bytes=submission.bodies.max_bytes,
            )
            would_be = await submission.acceptance.check(asked)
        assert would_be.cost is not None  # Every new job has a cost.
        answer = CheckAnswer(images=would_be.images, cost=would_be.cost)
        return Response(answer.model_dump_json(), media_type="application/json")

    return check


_add_generate(Flavour.WORKFLOW, "Submit a node graph in ComfyUI's API format.")
_add_generate(Flavour.DIFFUSION, "Submit a flat set of generation parameters.")
_add_check(
    Flavour.WORKFLOW,
    "Compute the cost of a node graph. The graph is checked like that of a job, but no job is "
    "submitted.",
)
_add_check(
    Flavour.DIFFUSION,
    "Compute the cost of a set of parameters. The request is checked like a job, but no job is "
    "submitted.",
)
