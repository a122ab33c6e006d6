"""`/prompt`: accepts a workflow, and returns the number of open jobs."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request

from engine.interface import Catalogue
from events.ids import is_job_id
from events.log import utc_now
from events.store.records import ApiKey
from events.types import Flavour
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.protocols.comfyui.bodies import invalid, json_body, twin
from serve_app.protocols.comfyui.job_lists import remaining, wait_for_read_model
from serve_app.protocols.comfyui.records import number_of
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.replica import JobAccessDep, SubmissionDep
from serve_app.routes.generate import EndpointId

CLIENT_ID = re.compile(r"[\x20-\x7e]{0,128}")
_ANNOTATION = re.compile(r" \[(?:input|output|temp)\]$")
_PREVIEW_METHODS = {"auto", "latent2rgb", "taesd"}
"""ComfyUI's preview methods that enable previews. Darkroom uses one method for all of them."""

router = APIRouter(include_in_schema=False)


@router.post(twin("/prompt"))
async def queue_prompt(
    request: Request,
    key: GenerateProtocolKey,
    submission: SubmissionDep,
    *,
    endpoint: EndpointId = "default",
) -> dict[str, Any]:
    """Accept a workflow. The answer has status 200 and a `prompt_id`, unlike in `/v1`."""
    began = utc_now()
    async with json_body(submission.bodies, request, key.owner) as (body, content):
        job = await submission.acceptance.accept(
            _asked(
                key,
                body,
                _cleared(content, submission.catalogue),
                endpoint=endpoint,
                is_of_page=request.scope["path"].startswith("/comfy/"),
            ),
            began=began,
        )
    return {"prompt_id": job.id, "number": number_of(job), "node_errors": {}}


@router.get(twin("/prompt"))
async def count_prompts(key: ReadProtocolKey, access: JobAccessDep) -> dict[str, Any]:
    await wait_for_read_model(access)
    return status(await remaining(access, key.owner))


def status(count: int) -> dict[str, Any]:
    return {"exec_info": {"queue_remaining": count}}


def _asked(
    key: ApiKey, body: bytes, content: Any, *, endpoint: str, is_of_page: bool
) -> GenerateRequest:
    """Build the generate request for a body. Raises ApiError 400."""
    said = content if isinstance(content, dict) else {}
    client_id = said.get("client_id") or ""
    if not isinstance(client_id, str) or not CLIENT_ID.fullmatch(client_id):
        raise invalid("client_id must have at most 128 characters, all of them ASCII.")
    job_id = said.get("prompt_id")
    if job_id is not None and not (isinstance(job_id, str) and is_job_id(job_id)):
        raise invalid(
            "prompt_id must be a UUID in lower case with hyphens. Without prompt_id, a new id is "
            "chosen."
        )
    extra = said.get("extra_data")
    method = extra.get("preview_method") if isinstance(extra, dict) else None
    return GenerateRequest(
        flavour=Flavour.WORKFLOW,
        key=key,
        endpoint=endpoint,
        body=body,
        content=content,
        preview=method in _PREVIEW_METHODS if isinstance(method, str) else is_of_page,
        job_id=job_id,
        client_id=client_id,
    )


def _cleared(content: Any, catalogue: Catalogue) -> Any:
    """Remove ComfyUI's additions to names of uploads, and output nodes that are not requested."""
    prompt = content.get("prompt") if isinstance(content, dict) else None
    if not isinstance(prompt, dict):
        return content
    wanted = content.get("partial_execution_targets")
    targets = set(map(str, wanted)) if isinstance(wanted, list) else None
    nodes = {}
    for id, node in prompt.items():
        kind = catalogue.node(node["class_type"]) if _is_node(node) else None
        if kind is not None and kind.is_output and targets is not None and id not in targets:
            continue
        nodes[id] = node if kind is None else _with_labels(node, kind.file_inputs)
    return {**content, "prompt": nodes}


def _is_node(node: Any) -> bool:
    return (
        isinstance(node, dict)
        and isinstance(node.get("class_type"), str)
        and isinstance(node.get("inputs"), dict)
    )


def _with_labels(node: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Remove folders and annotations from the names of files. Uploads have no folders."""
    given = {name: node["inputs"].get(name) for name in names}
    labels = {
        name: _ANNOTATION.sub("", value).rpartition("/")[2]
        for name, value in given.items()
        if isinstance(value, str)
    }
    return {**node, "inputs": {**node["inputs"], **labels}} if labels else node
