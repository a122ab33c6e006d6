"""Routes that accept or check jobs of both flavours. Each flavour has two paths for submissions.

`DirectRoute` computes the arguments of the handlers, including their dependencies.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import AfterValidator, BaseModel, Field

from events.delivery_steps import CallbackEvent
from events.log import utc_now
from events.result import ResultResponse, result_of
from events.store.records import DEFAULT_ENDPOINT
from events.types import Flavour, JobCost, Submitted
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.auth import GenerateKey
from serve_app.openapi.document import callback_routes, documented, operation_id, request_body
from serve_app.refusals import CallbackUrlMissing
from serve_app.replica import JobAccessDep, SubmissionDep
from serve_app.routes.direct_route import DirectRoute
from settings.keys import ImageFormat

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def _checked_callback_events(text: str | None) -> str | None:
    """Return the text unchanged. Raises ValueError if it is not a valid list of callback events."""
    if text is None:
        return None
    names = text.split(",")
    for name in names:
        if name not in set(CallbackEvent):
            near = get_close_matches(name, list(CallbackEvent), n=1)
            known = f"the events are {', '.join(CallbackEvent)}"
            hint = f"did you mean {near[0]}?" if near else known
            raise ValueError(f"{name[:40]!r} is not a callback event; {hint}")
    if CallbackEvent.COMPLETED not in names:
        raise ValueError("the events must include completed")
    return text


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
    AfterValidator(_checked_callback_events),
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


class CheckAnswer(BaseModel):
    images: int = Field(description="The number of images; 0 if it is not known before the run")
    cost: JobCost


router = APIRouter(
    tags=["generate"],
    route_class=DirectRoute,
    generate_unique_id_function=operation_id,
    responses=documented(400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 503),
)


async def generate(
    request: Request,
    key: GenerateKey,
    submission: SubmissionDep,
    access: JobAccessDep,
    *,
    endpoint: EndpointId = DEFAULT_ENDPOINT,
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
            GenerateRequest(
                flavour=_flavour_of(request),
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
    result_path = request.scope["route"].path.removesuffix("generate") + "result"
    headers = {"Location": f"{result_path}?request_id={job.id}"}
    answer = result_of(job, access.files.url_for).body()
    return Response(answer, 202, headers, media_type="application/json")


async def check(
    request: Request,
    key: GenerateKey,
    submission: SubmissionDep,
    *,
    endpoint: EndpointId = DEFAULT_ENDPOINT,
) -> Response:
    async with submission.bodies.json_with_images(request, key.owner) as (body, content):
        would_be = await submission.acceptance.check(
            GenerateRequest(
                flavour=_flavour_of(request),
                key=key,
                endpoint=endpoint,
                body=body,
                content=content,
                max_bytes=submission.bodies.max_bytes,
            )
        )
    return check_answer(would_be)


def check_answer(would_be: Submitted) -> Response:
    """Return the answer to a check. `would_be` is the event that a submission would store."""
    assert would_be.cost is not None  # Every new job has a cost.
    answer = CheckAnswer(images=would_be.images, cost=would_be.cost)
    return Response(answer.model_dump_json(), media_type="application/json")


def _flavour_of(request: Request) -> Flavour:
    """Return the flavour that the path names."""
    is_workflow = "/workflow/" in request.scope["route"].path
    return Flavour.WORKFLOW if is_workflow else Flavour.DIFFUSION


def events_before_end(text: str | None, callback_url: str | None) -> tuple[str, ...] | None:
    """Return the events of `callback_events` that precede the end, in a fixed order.

    `text` has been validated. Raises CallbackUrlMissing if there is a `text`, but no
    `callback_url`.
    """
    if text is None:
        return None
    if callback_url is None:
        raise CallbackUrlMissing
    before = (each for each in CallbackEvent if each is not CallbackEvent.COMPLETED)
    return tuple(each.value for each in before if each in text.split(",")) or None


def traceparent_of(request: Request) -> str | None:
    """Return the `traceparent` header of the request if it is well-formed."""
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _add_generate(flavour: Flavour, description: str) -> None:
    """Add both paths of a flavour. `description` is for the OpenAPI document."""
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


def _add_check(flavour: Flavour, description: str) -> None:
    router.add_api_route(
        f"/{flavour}/v1/check",
        check,
        methods=["POST"],
        name=f"check_{flavour}",
        description=description,
        response_model=None,
        responses={200: {"model": CheckAnswer, "description": "The request would be accepted now"}},
        openapi_extra={"requestBody": request_body(flavour)},
    )


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
