"""Routes that store, show, change, delete and run named workflows."""

from __future__ import annotations

import logging
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic import BaseModel, Field

from events.log import utc_now
from events.result import ResultResponse, result_of
from events.store.records import EVERY_OWNER, ApiKey, WorkflowVersion
from events.types import Flavour
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.answers import json_answer
from serve_app.auth import GenerateKey, ReadKey
from serve_app.bodies import too_large
from serve_app.openapi.document import WORKFLOW_EXAMPLE, callback_routes, documented, model_body
from serve_app.replica import JobAccessDep, Submission, SubmissionDep
from serve_app.routes.generate import (
    Alone,
    CallbackEvents,
    CallbackUrl,
    CheckAnswer,
    Format,
    IdempotencyKey,
    Preview,
    Quality,
    check_answer,
    events_before_end,
    traceparent_of,
)
from serve_app.workflows.definition import (
    InputDefinition,
    NewWorkflow,
    WorkflowChanges,
    WorkflowRun,
    value_in,
)
from serve_app.workflows.named import FoundWorkflow

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)

router = APIRouter(
    prefix="/v1/workflows",
    tags=["workflows"],
    responses=documented(400, 401, 403, 429, 500, 503),
)

Reference = Annotated[
    str,
    Path(
        description="The name of the workflow, or name and version: `portrait`, `portrait@3`",
        examples=["portrait"],
    ),
]
Shared = Annotated[
    bool,
    Query(
        description="Whether the workflow with this name that belongs to all owners is meant. Only "
        "administrators may change it"
    ),
]
RunEndpoint = Annotated[
    str,
    Query(description="The endpoint that runs the job. Absent: the endpoint of the workflow"),
]


class VersionInfo(BaseModel):
    version: int
    created_at: datetime


class WorkflowSummary(BaseModel):
    name: str
    version: int = Field(description="The version that the name without a version means")
    versions: list[VersionInfo] = Field(description="All versions, oldest first")
    marked: int | None = Field(
        default=None,
        description="The version that was marked. Absent: the name means the newest version",
    )
    shared: bool = Field(description="Whether the keys of all owners may run the workflow")

    @staticmethod
    def members(versions: list[WorkflowVersion]) -> dict[str, Any]:
        newest = versions[-1]
        marked = next((each.version for each in versions if each.is_marked), None)
        return {
            "name": newest.name,
            "version": marked or newest.version,
            "versions": [
                VersionInfo(version=each.version, created_at=each.created_at) for each in versions
            ],
            "marked": marked,
            "shared": newest.owner == EVERY_OWNER,
        }


class WorkflowPage(BaseModel):
    workflows: list[WorkflowSummary] = Field(description="Sorted by name")


class ShownInput(InputDefinition):
    value: Any = Field(default=None, description="The value in the graph")


class WorkflowDetail(WorkflowSummary):
    """One version of a workflow."""

    shown: int = Field(description="The version whose content this is")
    description: str
    endpoint: str
    inputs: dict[str, ShownInput]
    outputs: dict[str, str] = Field(description="The ids of the output nodes by name")
    prompt: dict[str, Any] = Field(description="The graph, in ComfyUI's API format")

    @classmethod
    def of(cls, found: FoundWorkflow) -> WorkflowDetail:
        definition = found.definition
        inputs = {
            name: ShownInput(**each.model_dump(), value=value_in(definition.prompt, each))
            for name, each in definition.inputs.items()
        }
        return cls(
            **cls.members(list(found.versions)),
            shown=found.version.version,
            description=definition.description,
            endpoint=definition.endpoint,
            inputs=inputs,
            outputs=definition.outputs,
            prompt=definition.prompt,
        )


class WorkflowSchema(BaseModel):
    inputs: dict[str, Any] = Field(description="JSON Schema of the member `inputs` of a call")
    outputs: dict[str, Any] = Field(
        description="JSON Schema of the results, grouped by their `output`"
    )


_NEW_BODY = model_body(
    NewWorkflow,
    {
        "name": "portrait",
        "prompt": WORKFLOW_EXAMPLE["prompt"],
        "inputs": {"prompt": {"node": "6", "input": "text", "required": True}},
        "outputs": {"image": "9"},
    },
)
_CHANGE_BODY = model_body(WorkflowChanges, {"description": "A person in front of a plain wall"})
_CALL_BODY = model_body(WorkflowRun, {"inputs": {"prompt": "a lighthouse in a storm"}})


@router.get("", response_model_exclude_none=True)
async def list_workflows(key: ReadKey, submission: SubmissionDep) -> WorkflowPage:
    """List the workflows of the key's owner, and the workflows of all owners."""
    found = await submission.workflows.all(key)
    return WorkflowPage(
        workflows=[WorkflowSummary(**WorkflowSummary.members(each)) for each in found.values()]
    )


@router.post(
    "",
    status_code=201,
    response_model=WorkflowDetail,
    responses=documented(404, 408, 409, 413, 415),
    openapi_extra={"requestBody": _NEW_BODY},
)
async def create_workflow(
    request: Request, key: GenerateKey, submission: SubmissionDep
) -> Response:
    """Store a graph under a name. The graph is checked like the graph of a job. If the body has no
    `inputs` or no `outputs`, they are proposed from the graph.
    """
    body = await _read_definition(request, key, submission, NewWorkflow)
    found = await submission.workflows.create(key, body)
    _log_change("create", body.name, key)
    answer = await json_answer(partial(WorkflowDetail.of, found), exclude_none=True)
    answer.status_code = 201
    answer.headers["Location"] = f"{router.prefix}/{body.name}"
    return answer


@router.get("/{name}", response_model=WorkflowDetail, responses=documented(404))
async def show_workflow(
    name: Reference, key: ReadKey, submission: SubmissionDep, *, shared: Shared = False
) -> Response:
    """Show a version of a workflow with its graph, its inputs and its outputs."""
    found = await submission.workflows.find(key, name, shared=shared)
    return await json_answer(partial(WorkflowDetail.of, found), exclude_none=True)


@router.patch(
    "/{name}",
    response_model=WorkflowDetail,
    responses=documented(404, 408, 409, 413, 415),
    openapi_extra={"requestBody": _CHANGE_BODY},
)
async def change_workflow(
    name: Reference,
    request: Request,
    key: GenerateKey,
    submission: SubmissionDep,
    *,
    shared: Shared = False,
) -> Response:
    """Store a new version of a workflow, or mark the version that its name means. Members that the
    body does not have are those of the newest version, except that the outputs of a new graph are
    proposed again. Earlier versions never change.
    """
    body = await _read_definition(request, key, submission, WorkflowChanges)
    found = await submission.workflows.change(key, name, body, shared=shared)
    _log_change("change", name, key)
    return await json_answer(partial(WorkflowDetail.of, found), exclude_none=True)


@router.delete("/{name}", status_code=204, responses=documented(404))
async def delete_workflow(
    name: Reference, key: GenerateKey, submission: SubmissionDep, *, shared: Shared = False
) -> Response:
    """Delete a workflow with all its versions. Jobs that it made stay as they are."""
    await submission.workflows.remove(key, name, shared=shared)
    _log_change("delete", name, key)
    return Response(status_code=204)


@router.get("/{name}/schema", response_model=WorkflowSchema, responses=documented(404))
async def show_workflow_schema(
    name: Reference, key: ReadKey, submission: SubmissionDep
) -> Response:
    """Show the inputs and outputs of a workflow as JSON Schema."""
    found = await submission.workflows.find(key, name)
    outputs = {each: {"type": "array"} for each in found.definition.outputs}
    return await json_answer(
        lambda: WorkflowSchema(
            inputs=found.definition.json_schema(found.versioned_name),
            outputs={"type": "object", "properties": outputs},
        )
    )


@router.post(
    "/{name}/generate",
    status_code=202,
    response_model=None,
    responses=documented(404, 408, 409, 413, 415)
    | {202: {"model": ResultResponse, "description": "The job was accepted and stored"}},
    openapi_extra={"requestBody": _CALL_BODY},
    callbacks=callback_routes("/v1/workflows/{name}/generate"),
)
async def run_workflow(
    request: Request,
    key: GenerateKey,
    submission: SubmissionDep,
    access: JobAccessDep,
    *,
    name: Reference,
    endpoint: RunEndpoint = "",
    callback_url: CallbackUrl = None,
    callback_events: CallbackEvents = None,
    alone: Alone = False,
    preview: Preview = False,
    image_format: Format = None,
    image_quality: Quality = None,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Submit a job of a named workflow with values for its inputs."""
    began = utc_now()
    found = await submission.workflows.find(key, name)
    async with submission.bodies.json_with_images(request, key.owner) as (body, content):
        wanted = await submission.workflows.request_of(
            found,
            content,
            GenerateRequest(
                flavour=Flavour.WORKFLOW,
                key=key,
                endpoint=endpoint,
                body=body,
                content=None,
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
            reference=name,
        )
        job = await submission.acceptance.accept(wanted, began=began)
    headers = {"Location": f"/workflow/v1/result?request_id={job.id}"}
    answer = result_of(job, access.files.url_for).body()
    return Response(answer, 202, headers, media_type="application/json")


@router.post(
    "/{name}/check",
    response_model=None,
    responses=documented(404, 408, 409, 413, 415)
    | {200: {"model": CheckAnswer, "description": "The request would be accepted now"}},
    openapi_extra={"requestBody": _CALL_BODY},
)
async def check_workflow_run(
    name: Reference,
    request: Request,
    key: GenerateKey,
    submission: SubmissionDep,
    *,
    endpoint: RunEndpoint = "",
) -> Response:
    """Check values for the inputs of a workflow, and compute the cost. No job is submitted."""
    found = await submission.workflows.find(key, name)
    async with submission.bodies.json_with_images(request, key.owner) as (body, content):
        wanted = await submission.workflows.request_of(
            found,
            content,
            GenerateRequest(
                flavour=Flavour.WORKFLOW,
                key=key,
                endpoint=endpoint,
                body=body,
                content=None,
                max_bytes=submission.bodies.max_bytes,
            ),
            reference=name,
        )
        would_be = await submission.acceptance.check(wanted)
    return check_answer(would_be)


async def _read_definition(
    request: Request, key: ApiKey, submission: Submission, model: type[M]
) -> M:
    """Read a body with a definition. Only a body with an image may exceed the usual size."""
    bodies = submission.bodies
    async with bodies.json_with_images(request, key.owner) as (body, content):
        has_image = isinstance(content, dict) and isinstance(content.get("prompt"), str)
        if len(body) > bodies.max_bytes and not has_image:
            raise too_large(bodies.max_bytes)
        return await bodies.validated(body, content, key.owner, model)


def _log_change(change: str, name: str, key: ApiKey) -> None:
    fields = {"action": f"{change}_workflow", "workflow": name, "by_key_id": key.id}
    logger.info("workflows changed", extra=fields)
