"""`/prompt`: accepts a workflow, and returns the number of open jobs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, Request

from comfyui.graphs import INPUT_SUFFIX
from engine.interface import Catalogue, GraphInvalid
from events.ids import is_job_id
from events.log import utc_now
from events.store.records import DEFAULT_ENDPOINT, ApiKey
from events.types import Flavour
from serve_app.acceptance.acceptance import GenerateRequest
from serve_app.error_responses import ApiError
from serve_app.protocols.comfyui.bodies import invalid, json_body, twin
from serve_app.protocols.comfyui.images import stored_result
from serve_app.protocols.comfyui.job_lists import remaining, wait_for_read_model
from serve_app.protocols.comfyui.records import number_of
from serve_app.protocols.credentials import GenerateProtocolKey, ReadProtocolKey
from serve_app.refusals import JobNotFound
from serve_app.replica import JobAccess, JobAccessDep, Submission, SubmissionDep
from serve_app.routes.generate import EndpointId, IdempotencyKey
from serve_app.upload_store import is_upload_name
from storage.file_names import without_folder
from storage.images import ImageNotFound

CLIENT_ID = re.compile(r"[\x20-\x7e]{0,128}")
_MOST_RESULTS = 16
"""The most results of earlier jobs that one prompt may name as inputs."""
_PREVIEW_METHODS = {"auto", "latent2rgb", "taesd"}
"""ComfyUI's preview methods that enable previews. Darkroom uses one method for all of them."""

router = APIRouter(include_in_schema=False)


@router.post(twin("/prompt"))
async def queue_prompt(
    request: Request,
    key: GenerateProtocolKey,
    submission: SubmissionDep,
    access: JobAccessDep,
    *,
    endpoint: EndpointId = DEFAULT_ENDPOINT,
    idempotency_key: IdempotencyKey = None,
) -> dict[str, Any]:
    """Accept a workflow. The answer has status 200 and a `prompt_id`, unlike in `/v1`."""
    began = utc_now()
    async with json_body(submission.bodies, request, key.owner) as (body, content):
        names = await _copied_results(content, key, submission=submission, access=access)
        job = await submission.acceptance.accept(
            _asked(
                key,
                body,
                _cleared(content, submission.catalogue, names),
                endpoint=endpoint,
                idempotency_key=idempotency_key,
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
    key: ApiKey,
    body: bytes,
    content: Any,
    *,
    endpoint: str,
    idempotency_key: str | None,
    is_of_page: bool,
) -> GenerateRequest:
    """Build the generate request for a body. Raises ApiError 400."""
    said = content if isinstance(content, dict) else {}
    client_id = said.get("client_id")
    if isinstance(client_id, int | float) and not isinstance(client_id, bool):
        client_id = str(client_id)  # Some clients send a number, and name it as text in `/ws`.
    client_id = client_id or ""
    if not isinstance(client_id, str) or not CLIENT_ID.fullmatch(client_id):
        raise invalid(
            "client_id must be a number, or have at most 128 characters, all of them ASCII."
        )
    job_id = said.get("prompt_id") or None
    if job_id is not None and not (isinstance(job_id, str) and is_job_id(job_id)):
        raise invalid(
            "prompt_id must be a UUID in lower case with hyphens. Without prompt_id, a new id is "
            "chosen."
        )
    if job_id is not None and idempotency_key is not None:
        raise invalid("Send either prompt_id or the header Idempotency-Key, but not both.")
    extra = said.get("extra_data")
    method = extra.get("preview_method") if isinstance(extra, dict) else None
    return GenerateRequest(
        flavour=Flavour.WORKFLOW,
        key=key,
        endpoint=endpoint,
        body=body,
        content=content,
        preview=method in _PREVIEW_METHODS if isinstance(method, str) else is_of_page,
        idempotency_key=idempotency_key,
        job_id=job_id,
        client_id=client_id,
    )


async def _copied_results(
    content: Any, key: ApiKey, *, submission: Submission, access: JobAccess
) -> dict[str, str]:
    """Store an upload for each image of the owner's jobs that the graph names as an input.

    Return the names of the uploads by the names in the graph. An upload of the same name and type
    comes first. Raises GraphInvalid for too many results, and the errors of
    `UploadStore.add_content`.
    """
    prompt = content.get("prompt") if isinstance(content, dict) else None
    nodes = [each for each in prompt.values() if _is_node(each)] if isinstance(prompt, dict) else []
    named = [
        node["inputs"].get(name)
        for node in nodes
        for name in submission.catalogue.image_inputs(node["class_type"])
    ]
    texts = dict.fromkeys([each for each in named if isinstance(each, str)])
    labels = {
        each: label
        for each in texts
        if without_folder(each) != each and is_upload_name(label := _label(each))
    }
    uploads = await submission.uploads.rows.use(key.owner, [*labels.values()], utc_now())
    results = [text for text, label in labels.items() if label not in uploads]
    if len(results) > _MOST_RESULTS:
        details = f"the prompt has {len(results)}, but at most {_MOST_RESULTS} are allowed"
        raise GraphInvalid("too_many_files", "The prompt names too many results", details)
    copies = {}
    for text in results:
        folder, _, name = without_folder(text).rpartition("/")
        try:
            file = await stored_result(access, key, name, folder)
        except (ApiError, JobNotFound):
            continue
        if not file.media_type.startswith("image/"):
            continue
        async with access.bodies.reserve_memory(key.owner, file.size_bytes):
            try:
                data = await access.files.images.get(file.key)
            except ImageNotFound:  # The job was erased just now.
                continue
            copies[text] = (await submission.uploads.add_content(key.owner, data)).name
    return copies


def _cleared(content: Any, catalogue: Catalogue, names: Mapping[str, str]) -> Any:
    """Remove ComfyUI's additions to names of uploads, and output nodes that are not requested.

    `names` are the names of uploads that replace names of results.
    """
    prompt = content.get("prompt") if isinstance(content, dict) else None
    if not isinstance(prompt, dict):
        return content
    wanted = content.get("partial_execution_targets")
    needed = _needed(prompt, map(str, wanted)) if isinstance(wanted, list) else None
    nodes = {}
    for id, node in prompt.items():
        kind = catalogue.node(node["class_type"]) if _is_node(node) else None
        if kind is not None and kind.is_output and needed is not None and id not in needed:
            continue
        nodes[id] = node if kind is None else _with_labels(node, kind.file_inputs, names)
    return {**content, "prompt": nodes}


def _needed(prompt: Mapping[str, Any], targets: Iterable[str]) -> set[str]:
    """Return the targets and all nodes whose outputs they need, some of which may save results."""
    needed: set[str] = set()
    pending = list(targets)
    while pending:
        id = pending.pop()
        if id in needed or not _is_node(prompt.get(id)):
            continue
        needed.add(id)
        values = prompt[id]["inputs"].values()
        pending += [str(each[0]) for each in values if isinstance(each, list) and each]
    return needed


def _is_node(node: Any) -> bool:
    return (
        isinstance(node, dict)
        and isinstance(node.get("class_type"), str)
        and isinstance(node.get("inputs"), dict)
    )


def _with_labels(
    node: dict[str, Any], inputs: tuple[str, ...], names: Mapping[str, str]
) -> dict[str, Any]:
    """Replace the names of files by the names of uploads."""
    given = {name: node["inputs"].get(name) for name in inputs}
    labels = {
        name: names.get(value) or _label(value)
        for name, value in given.items()
        if isinstance(value, str)
    }
    return {**node, "inputs": {**node["inputs"], **labels}} if labels else node


def _label(value: str) -> str:
    """Return the name of the upload that a graph names. Uploads have no folders."""
    return value.removesuffix(INPUT_SUFFIX).rpartition("/")[2]
