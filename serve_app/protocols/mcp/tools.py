"""The tools for agents: images from a prompt, named workflows, and jobs."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

import mcp_types as types
from fastapi import Request
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict, Field

from events.decisions import Cancel
from events.job import Job
from events.log import utc_now
from events.result import ResultResponse, Status, result_of
from events.store.records import DEFAULT_ENDPOINT, ApiKey, Scope
from events.types import Flavour, ImageStored
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.access.api_keys import require_scope
from serve_app.bodies import validated
from serve_app.error_responses import error_of
from serve_app.live.progress import newest_of
from serve_app.protocols.openai.models import listed_models, target_of
from serve_app.protocols.waiting import MAX_WAIT_S
from serve_app.replica import Replica
from serve_app.routes.jobs import job_at_end
from serve_app.stored_file import parts_of
from serve_app.workflows.definition import MAX_INPUTS
from settings.constant import constant

_MAX_IMAGE_BYTES = constant("MCP_MAX_IMAGE_BYTES", 4 * 1024**2)
"""The largest total size in bytes of the images in one answer. Others have only their URL."""
_REPORT_PERIOD_S = 1.0
_RUN_PREFIX = "run_"
_MAX_NAME_CHARS = 64

Report: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None]]
"""Sends a progress notification: the progress, its total and a message."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An MCP request and the key that sent it."""

    replica: Replica
    request: Request
    key: ApiKey


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GenerateImage(_Arguments):
    """Make images from a prompt, and wait for them."""

    prompt: Annotated[str, Field(min_length=1, description="What the images show")]
    negative_prompt: Annotated[str, Field(description="What the images do not show")] = ""
    width: Annotated[int | None, Field(ge=16, le=4096, description="Pixels")] = None
    height: Annotated[int | None, Field(ge=16, le=4096, description="Pixels")] = None
    count: Annotated[int, Field(ge=1, le=4, description="The number of images")] = 1
    steps: Annotated[int | None, Field(ge=1, le=150)] = None
    seed: Annotated[int, Field(ge=-1, lt=2**53, description="-1: a random seed")] = -1
    model: Annotated[
        str, Field(description="A model or an endpoint from list_models. Empty: the default")
    ] = ""


class SubmitJob(_Arguments):
    """Submit a job and return its request_id at once."""

    flavour: Annotated[
        Literal["workflow", "diffusion"],
        Field(description="workflow: a graph of ComfyUI; diffusion: parameters"),
    ]
    body: Annotated[
        dict[str, Any],
        Field(
            description='For a workflow {"prompt": the graph in the API format}, for diffusion '
            "the parameters of the WebUI, such as prompt, width, height, steps"
        ),
    ]
    endpoint: Annotated[str, Field(description="The endpoint that runs the job")] = DEFAULT_ENDPOINT


class WaitForJob(_Arguments):
    """Wait until a job ends, and return its images, or why it failed."""

    request_id: str
    timeout_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 300.0


class CancelJob(_Arguments):
    """Cancel a job that waits or runs."""

    request_id: str


class ListModels(_Arguments):
    """List the models, the endpoints and the workflows that the key may use."""


async def list_tools(caller: Caller) -> list[types.Tool]:
    """Return the fixed tools, and one for each workflow in `NamedWorkflows.definitions`."""
    tools = [
        types.Tool(
            name=name,
            description=arguments.__doc__,
            input_schema=arguments.model_json_schema(),
            annotations=types.ToolAnnotations(
                read_only_hint=name in _READ_ONLY, destructive_hint=name == "cancel_job"
            ),
        )
        for name, (arguments, _) in _TOOLS.items()
    ]
    workflows = caller.replica.submission.workflows
    definitions = await workflows.definitions(caller.key)
    names = _tool_names(definitions)
    return [
        *tools,
        *(
            types.Tool(
                name=tool,
                description=definitions[name].description or f"Run the workflow {name}.",
                input_schema=definitions[name].json_schema(name),
                annotations=types.ToolAnnotations(read_only_hint=False, destructive_hint=False),
            )
            for tool, name in names.items()
        ),
    ]


async def call_tool(
    caller: Caller, name: str, arguments: Mapping[str, Any], *, report: Report
) -> types.CallToolResult:
    """Run a tool. If the call is refused, the result is an error whose text says what to change.

    Raises MCPError if there is no such tool, or if no tool has so many arguments.
    """
    if len(arguments) > MAX_INPUTS:
        raise MCPError(types.INVALID_PARAMS, f"A call may have at most {MAX_INPUTS} arguments.")
    try:
        if name in _TOOLS:
            model, tool = _TOOLS[name]
            return await tool(caller, validated(model, dict(arguments)), report)
        names = _tool_names(await caller.replica.submission.workflows.all(caller.key))
        if name in names:
            return await _run_workflow(caller, names[name], arguments, report)
    except Exception as error:  # noqa: BLE001 - every error has an answer
        return _refusal(error)
    raise MCPError(types.INVALID_PARAMS, f"There is no tool {name[:80]!r}.")


def _tool_names(workflows: Mapping[str, object]) -> dict[str, str]:
    """Return the names of workflows by the names of their tools.

    Clients allow only some characters and lengths in names of tools. If two workflows get the same
    tool name, the first of them is used.
    """
    tools: dict[str, str] = {}
    for name in workflows:
        tools.setdefault(f"{_RUN_PREFIX}{name.replace('.', '_')}"[:_MAX_NAME_CHARS], name)
    return tools


async def _generate_image(
    caller: Caller, asked: GenerateImage, report: Report
) -> types.CallToolResult:
    target = await target_of(caller.replica.submission, caller.key, asked.model)
    body: dict[str, Any] = {
        "prompt": asked.prompt,
        "negative_prompt": asked.negative_prompt,
        "batch_size": asked.count,
        "seed": asked.seed,
        "width": asked.width,
        "height": asked.height,
        "steps": asked.steps,
        "sd_model_checkpoint": target.checkpoint,
    }
    content = {name: value for name, value in body.items() if value is not None}
    wanted = _generate_request(caller, Flavour.DIFFUSION, content, target.endpoint.id)
    job = await _submit(caller, wanted)
    return await _wait_for_end(caller, job, report, wait_s=MAX_WAIT_S)


async def _run_workflow(
    caller: Caller, name: str, arguments: Mapping[str, Any], report: Report
) -> types.CallToolResult:
    workflows = caller.replica.submission.workflows
    found = await workflows.find(caller.key, name)
    request = _generate_request(caller, Flavour.WORKFLOW, {"inputs": dict(arguments)}, "")
    wanted = await workflows.request_of(found, request.content, request, reference=name)
    require_scope(caller.key, Scope.GENERATE)
    job = await caller.replica.submission.acceptance.accept(wanted, began=utc_now())
    return await _wait_for_end(caller, job, report, wait_s=MAX_WAIT_S)


async def _submit_job(caller: Caller, asked: SubmitJob, _: Report) -> types.CallToolResult:
    wanted = _generate_request(caller, Flavour(asked.flavour), asked.body, asked.endpoint)
    return await _job_result(caller, await _submit(caller, wanted))


async def _wait_for_job(caller: Caller, asked: WaitForJob, report: Report) -> types.CallToolResult:
    job = await caller.replica.job_access.jobs.owned(asked.request_id, caller.key)
    return await _wait_for_end(caller, job, report, wait_s=asked.timeout_s)


async def _cancel_job(caller: Caller, asked: CancelJob, _: Report) -> types.CallToolResult:
    require_scope(caller.key, Scope.CANCEL)
    jobs = caller.replica.job_access.jobs
    job = await jobs.owned(asked.request_id, caller.key)
    await jobs.end(Cancel(), job)
    return await _job_result(caller, await jobs.owned(job.id, caller.key))


async def _list_models(caller: Caller, _: ListModels, __: Report) -> types.CallToolResult:
    submission = caller.replica.submission
    endpoints = await submission.acceptance.endpoints.usable(caller.key)
    models = [each["id"] for each in await listed_models(submission, caller.key)]
    listed = {
        "models": [name for name in models if name not in endpoints],
        "endpoints": [*endpoints],
        "workflows": [*await submission.workflows.all(caller.key)],
    }
    text = types.TextContent(text=json.dumps(listed, ensure_ascii=False))
    return types.CallToolResult(content=[text], structured_content=listed)


_Tool: TypeAlias = Callable[[Caller, Any, Report], Awaitable[types.CallToolResult]]
_TOOLS: Mapping[str, tuple[type[_Arguments], _Tool]] = {
    "generate_image": (GenerateImage, _generate_image),
    "submit_job": (SubmitJob, _submit_job),
    "wait_for_job": (WaitForJob, _wait_for_job),
    "cancel_job": (CancelJob, _cancel_job),
    "list_models": (ListModels, _list_models),
}
_READ_ONLY = {"wait_for_job", "list_models"}


def _generate_request(
    caller: Caller, flavour: Flavour, content: Mapping[str, Any], endpoint: str
) -> GenerateRequest:
    return GenerateRequest(
        flavour=flavour,
        key=caller.key,
        endpoint=endpoint,
        body=json.dumps(content).encode(),
        content=dict(content),
        max_bytes=caller.replica.submission.bodies.max_bytes,
    )


async def _submit(caller: Caller, wanted: GenerateRequest) -> Job:
    require_scope(caller.key, Scope.GENERATE)
    return await caller.replica.submission.acceptance.accept(wanted, began=utc_now())


async def _wait_for_end(
    caller: Caller, job: Job, report: Report, *, wait_s: float
) -> types.CallToolResult:
    """Wait at most `wait_s` for the end of a job, and report its progress each second.

    If the caller disconnects, the job continues.
    """
    access = caller.replica.job_access

    async def report_progress() -> None:
        with newest_of(access.live.progress, job.id) as newest:
            while True:
                await asyncio.sleep(_REPORT_PERIOD_S)
                progress, _ = newest.take()
                if progress is not None:
                    await report(progress.fraction, 1.0, None)

    with access.waits.hold(caller.key.owner):
        reports = asyncio.create_task(report_progress(), name=f"progress of {job.id}")
        try:
            job = await job_at_end(access, caller.request, caller.key, job, wait_s=wait_s)
        finally:
            reports.cancel()
            await asyncio.gather(reports, return_exceptions=True)
        return await _job_result(caller, job)


async def _job_result(caller: Caller, job: Job) -> types.CallToolResult:
    """Return the state of a job, its first images, and links to all of its files."""
    access = caller.replica.job_access
    result = result_of(job, access.files.url_for)
    content: list[types.ContentBlock] = [types.TextContent(text=_summary(result))]
    left_bytes = _MAX_IMAGE_BYTES
    for image in sorted(job.images, key=lambda each: each.index):
        media_type = image.media_type or "image/png"
        if media_type.startswith("image/") and image.size_bytes <= left_bytes:
            left_bytes -= image.size_bytes
            content.append(await _image(caller, image, media_type))
        content.append(
            types.ResourceLink(
                uri=access.files.url_for(job.id, image),
                name=image.name,
                mime_type=media_type,
                size=image.size_bytes,
            )
        )
    return types.CallToolResult(
        content=content,
        structured_content=json.loads(result.body()),
        is_error=result.status is Status.FAILED,
    )


async def _image(caller: Caller, image: ImageStored, media_type: str) -> types.ImageContent:
    parts = [part async for part in parts_of(caller.replica.job_access.files.images, image)]
    data = await asyncio.to_thread(lambda: b64encode(b"".join(parts)).decode())
    return types.ImageContent(data=data, mime_type=media_type)


def _summary(result: ResultResponse) -> str:
    """Return a text that says what happened to a job, and what to do next."""
    job = f"The job {result.request_id}"
    notes = f" Notes: {'; '.join(result.notes)}." if result.notes else ""
    match result.status:
        case Status.COMPLETED:
            return f"{job} has made {len(result.results)} files.{notes}"
        case Status.FAILED:
            retry = result.error is not None and result.error.retryable
            advice = "It may succeed if it is submitted again." if retry else ""
            return f"{job} failed: {result.message} {advice}".strip()
        case _:
            return f"{job} is {result.state}. Call wait_for_job with its request_id.{notes}"


def _refusal(error: Exception) -> types.CallToolResult:
    """Return the result of a call that was refused. Raises the error if it is an MCPError."""
    if isinstance(error, MCPError):
        raise error
    refused = error_of(error)
    content = types.TextContent(text=refused.full_message())
    return types.CallToolResult(content=[content], is_error=True)
