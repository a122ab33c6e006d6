"""Routes that take jobs: both flavours, each at two paths."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, Field

from events.job import Job
from events.job_cost import JobCost
from events.log import utc_now
from events.result import ResultResponse, UrlFor, result_of
from events.types import Flavour
from serve_app.acceptance.callback_events import checked_callback_events, events_before_end
from serve_app.acceptance.generate_request import generate_request
from serve_app.auth import GenerateKey
from serve_app.openapi.callback_docs import callback_routes
from serve_app.openapi.document import operation_id
from serve_app.openapi.error_responses import documented
from serve_app.openapi.request_bodies import request_body
from serve_app.replica import ReplicaDep
from serve_app.routes.direct_route import DirectRoute
from settings.keys import ImageFormat

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")

EndpointId = Annotated[str, Query(description="Inference endpoint that runs the job")]
CallbackUrl = Annotated[
    str | None,
    Query(
        description="Public http or https address that is sent the result when the job ends",
        examples=["https://example.com/task_completed"],
    ),
]
CallbackEvents = Annotated[
    str | None,
    AfterValidator(checked_callback_events),
    Query(
        description="What the address is told of, with commas: `started`, `image` (each one as it "
        "is stored) and `completed`, the end, which is always told. Without it, the end alone",
        examples=["started,image,completed"],
    ),
]
Alone = Annotated[
    bool,
    Query(
        description="Run the job without sharing calls of the model with other jobs. It then does "
        "not depend on its neighbours, not even by the rounding of floats, and takes longer"
    ),
]
Preview = Annotated[
    bool,
    Query(description="Show on the stream of the job's events what its picture looks like so far"),
]
Format = Annotated[
    ImageFormat | None,
    Query(description="Of the files of its images; absent: that of the key, PNG unless set up"),
]
Quality = Annotated[
    int | None,
    Query(
        ge=1,
        le=100,
        description="Of WebP and JPEG; a WebP of 100 is lossless. Absent: that of the key, 90 "
        "unless set up",
    ),
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x20-\x7e]+$",
        description="1 to 255 printable ASCII characters. The same key and request by the same "
        "caller is one job, however often it is sent",
    ),
]

Handler = Callable[..., Awaitable[Response]]


class CheckAnswer(BaseModel):
    images: int = Field(description="How many it makes; 0 where only the run can tell")
    cost: JobCost


router = APIRouter(
    tags=["generate"],
    route_class=DirectRoute,
    generate_unique_id_function=operation_id,
    responses=documented(400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 503),
)


def _add_generate(flavour: Flavour, description: str) -> None:
    """Both paths of a flavour; `description` is that of the OpenAPI document."""
    generate = _generate(flavour)
    location = {"description": "Path of the job's result", "schema": {"type": "string"}}
    accepted = {
        "model": ResultResponse,
        "description": "Accepted and stored",
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
        replica: ReplicaDep,
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
        async with replica.bodies.json_with_images(request, key.owner) as (body, content):
            job = await replica.acceptance.accept(
                await generate_request(
                    flavour=flavour,
                    key=key,
                    endpoint=endpoint,
                    body=body,
                    content=content,
                    max_bytes=replica.bodies.max_bytes,
                    callback_url=callback_url,
                    callback_events=events_before_end(callback_events, callback_url),
                    alone=alone,
                    preview=preview,
                    image_format=image_format,
                    image_quality=image_quality,
                    idempotency_key=idempotency_key,
                    traceparent=traceparent_of(request),
                )
            )
        replica.note_accepted(job, began=began)
        return _accepted(request, job, replica.services.url_for)

    return generate


def traceparent_of(request: Request) -> str | None:
    """That of the caller, if it is well-formed."""
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _accepted(request: Request, job: Job, url_for: UrlFor) -> Response:
    result_path = _result_path(request.scope["path"], job.submitted.flavour)
    headers = {"Location": f"{result_path}?request_id={job.id}"}
    return Response(result_of(job, url_for).body(), 202, headers, media_type="application/json")


def _result_path(generate_path: str, flavour: Flavour) -> str:
    """The result endpoint of the same form as the path that was called."""
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
        responses={200: {"model": CheckAnswer, "description": "It would be accepted now"}},
        openapi_extra={"requestBody": request_body(flavour)},
    )


def _check(flavour: Flavour) -> Handler:
    async def check(
        request: Request, key: GenerateKey, replica: ReplicaDep, *, endpoint: EndpointId = "default"
    ) -> Response:
        async with replica.bodies.json_with_images(request, key.owner) as (body, content):
            asked = await generate_request(
                flavour=flavour,
                key=key,
                endpoint=endpoint,
                body=body,
                content=content,
                max_bytes=replica.bodies.max_bytes,
            )
            would_be = await replica.acceptance.check(asked)
        assert would_be.cost is not None  # it is counted of every new job
        answer = CheckAnswer(images=would_be.images, cost=would_be.cost)
        return Response(answer.model_dump_json(), media_type="application/json")

    return check


_add_generate(Flavour.WORKFLOW, "Submit a node graph in ComfyUI's API format.")
_add_generate(Flavour.DIFFUSION, "Submit a flat set of generation parameters.")
_add_check(
    Flavour.WORKFLOW,
    "What a node graph would cost: it is checked as a job is, and none is submitted.",
)
_add_check(
    Flavour.DIFFUSION,
    "What a set of parameters would cost: it is checked as a job is, and none is submitted.",
)
