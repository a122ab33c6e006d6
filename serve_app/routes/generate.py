"""Routes that take jobs: both flavours, each at two paths."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, Field

from events.job_cost import JobCost
from events.log import utc_now
from events.result import ResultResponse, result_of
from events.store.records import ApiKey
from events.types import Flavour
from serve_app.acceptance.callback_events import checked_callback_events, events_before_end
from serve_app.acceptance.generate_request import GenerateRequest
from serve_app.auth import GenerateKey
from serve_app.openapi.callback_docs import callback_routes
from serve_app.openapi.document import operation_id
from serve_app.openapi.error_responses import documented
from serve_app.openapi.request_bodies import request_body
from serve_app.replica import Replica, ReplicaDep
from serve_app.routes.direct_route import DirectRoute

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


def _route(path: str, flavour: Flavour) -> Callable[[Handler], Handler]:
    location = {"description": "Path of the job's result", "schema": {"type": "string"}}
    accepted = {
        "model": ResultResponse,
        "description": "Accepted and stored",
        "headers": {"Location": location},
    }
    return router.post(
        path,
        status_code=202,
        response_model=None,
        responses={202: accepted},
        openapi_extra={"requestBody": request_body(flavour)},
        callbacks=callback_routes(path),
    )


@_route("/api/v1/workflow/generate", Flavour.WORKFLOW)
@_route("/workflow/v1/generate", Flavour.WORKFLOW)
async def generate_workflow(
    request: Request,
    key: GenerateKey,
    replica: ReplicaDep,
    *,
    endpoint: EndpointId = "default",
    callback_url: CallbackUrl = None,
    callback_events: CallbackEvents = None,
    alone: Alone = False,
    preview: Preview = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a node graph in ComfyUI's API format."""
    return await _accept(
        replica,
        request,
        flavour=Flavour.WORKFLOW,
        key=key,
        endpoint=endpoint,
        callback_url=callback_url,
        callback_events=callback_events,
        alone=alone,
        preview=preview,
        idempotency_key=idempotency_key,
    )


@_route("/api/v1/diffusion/generate", Flavour.DIFFUSION)
@_route("/diffusion/v1/generate", Flavour.DIFFUSION)
async def generate_diffusion(
    request: Request,
    key: GenerateKey,
    replica: ReplicaDep,
    *,
    endpoint: EndpointId = "default",
    callback_url: CallbackUrl = None,
    callback_events: CallbackEvents = None,
    alone: Alone = False,
    preview: Preview = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a flat set of generation parameters."""
    return await _accept(
        replica,
        request,
        flavour=Flavour.DIFFUSION,
        key=key,
        endpoint=endpoint,
        callback_url=callback_url,
        callback_events=callback_events,
        alone=alone,
        preview=preview,
        idempotency_key=idempotency_key,
    )


def _check_route(path: str, flavour: Flavour) -> Callable[[Handler], Handler]:
    return router.post(
        path,
        response_model=None,
        responses={200: {"model": CheckAnswer, "description": "It would be accepted now"}},
        openapi_extra={"requestBody": request_body(flavour)},
    )


@_check_route("/workflow/v1/check", Flavour.WORKFLOW)
async def check_workflow(
    request: Request, key: GenerateKey, replica: ReplicaDep, *, endpoint: EndpointId = "default"
) -> Response:
    """What a node graph would cost: it is checked as a job is, and none is submitted."""
    return await _check(replica, request, flavour=Flavour.WORKFLOW, key=key, endpoint=endpoint)


@_check_route("/diffusion/v1/check", Flavour.DIFFUSION)
async def check_diffusion(
    request: Request, key: GenerateKey, replica: ReplicaDep, *, endpoint: EndpointId = "default"
) -> Response:
    """What a set of parameters would cost: it is checked as a job is, and none is submitted."""
    return await _check(replica, request, flavour=Flavour.DIFFUSION, key=key, endpoint=endpoint)


async def _check(
    replica: Replica, request: Request, *, flavour: Flavour, key: ApiKey, endpoint: str
) -> Response:
    async with replica.bodies.json(request, key.owner) as (body, content):
        asked = GenerateRequest(
            flavour=flavour, key=key, endpoint=endpoint, body=body, content=content
        )
        would_be = await replica.acceptance.check(asked)
    assert would_be.cost is not None  # it is counted of every new job
    answer = CheckAnswer(images=would_be.images, cost=would_be.cost)
    return Response(answer.model_dump_json(), media_type="application/json")


async def _accept(
    replica: Replica,
    request: Request,
    *,
    flavour: Flavour,
    key: ApiKey,
    endpoint: str,
    callback_url: str | None,
    callback_events: str | None,
    alone: bool,
    preview: bool,
    idempotency_key: str | None,
) -> Response:
    began, traceparent = utc_now(), request.headers.get("traceparent", "")
    async with replica.bodies.json(request, key.owner) as (body, content):
        job = await replica.acceptance.accept(
            GenerateRequest(
                flavour=flavour,
                key=key,
                endpoint=endpoint,
                callback_url=callback_url,
                callback_events=events_before_end(callback_events, callback_url),
                alone=alone,
                preview=preview,
                idempotency_key=idempotency_key,
                body=body,
                content=content,
                traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else None,
            )
        )
    replica.note_accepted(job, began=began)
    result = result_of(job, replica.services.url_for)
    result_path = _result_path(request.scope["path"], flavour)
    headers = {"Location": f"{result_path}?request_id={job.id}"}
    return Response(result.body(), 202, headers, media_type="application/json")


def _result_path(generate_path: str, flavour: Flavour) -> str:
    """The result endpoint of the same form as the path that was called."""
    if generate_path.startswith("/api/v1/"):
        return f"/api/v1/{flavour}/result"
    return f"/{flavour}/v1/result"
