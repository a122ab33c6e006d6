"""Jobs in the formats of ComfyUI's queue, history and list of jobs."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from events.job import Job
from events.result import State, state_of
from events.types import Cancelled, Completed, Failed, ImageStored
from storage.file_names import PNG, SAFETENSORS, FileKind, file_name, kind_of

_NAME = re.compile(r"darkroom_(?P<number>[0-9]{5,7})_\.(?P<suffix>[a-z0-9]{1,8})")
_TEMPORARY = "PreviewImage"
_KEYS: dict[FileKind, str] = {
    "image": "images",
    "video": "images",  # as ComfyUI's SaveVideo does
    "audio": "audio",
    "model": "3d",
    "text": "files",
    "file": "files",
}
_STATUS = {
    State.QUEUED: "pending",
    State.RUNNING: "in_progress",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


def shown_name(image: ImageStored) -> str:
    """Return the file name of an image. The name is unique only within the job's folder."""
    suffix = file_name(image.index, image.media_type).rpartition(".")[2]
    return f"darkroom_{image.index + 1:05}_.{suffix}"


def index_in(name: str) -> int | None:
    """Return the image's index in a name from `shown_name`; None for other names."""
    parts = _NAME.fullmatch(name)
    return None if parts is None else int(parts["number"]) - 1


def outputs_of(
    images: tuple[ImageStored, ...], prompt: dict[str, Any], *, job_id: str
) -> dict[str, dict[str, Any]]:
    """Return the results of a job by output node, in the format of ComfyUI's history."""
    outputs: dict[str, dict[str, Any]] = {}
    for image in images:
        node = _first_output(prompt) if image.node is None else image.node
        kind = _key_of(image.media_type)
        is_temporary = class_of(node, prompt) == _TEMPORARY
        shown = {
            "filename": shown_name(image),
            "subfolder": job_id,
            "type": "temp" if is_temporary else "output",
        }
        outputs.setdefault(node, {}).setdefault(kind, []).append(shown)
    return outputs


def _key_of(media_type: str | None) -> str:
    """Return the key under which ComfyUI's history lists files of this type."""
    return "latents" if media_type == SAFETENSORS else _KEYS[kind_of(media_type)]


def class_of(node: str, prompt: dict[str, Any]) -> str:
    return str(prompt.get(node, {}).get("class_type", ""))


def media_type_of(image: ImageStored) -> str:
    return image.media_type or PNG


def _first_output(prompt: dict[str, Any]) -> str:
    """Return the first output node. Older versions recorded no node with an image."""
    saved = (node for node in prompt if class_of(node, prompt).startswith(("Save", "Preview")))
    return next(saved, next(iter(prompt), ""))


def number_of(job: Job) -> int:
    """Return the job's number, which increases with the time of submission as in ComfyUI."""
    return milliseconds(job.submitted_at)


def milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def prompt_of(job: Job) -> dict[str, Any]:
    prompt: dict[str, Any] = job.submitted.request.get("prompt") or {}
    return prompt


def queue_item(job: Job) -> list[Any]:
    """Return the job as a list: number, id, graph, extra data and output nodes."""
    prompt = prompt_of(job)
    linked = _linked(prompt)
    outputs = [node for node in prompt if node not in linked]
    extra = {"create_time": milliseconds(job.submitted_at), **_extra_data(job)}
    return [number_of(job), job.id, prompt, extra, outputs]


def history_item(job: Job) -> dict[str, Any]:
    """Return the history item of a job that has ended, in ComfyUI's format."""
    outputs = outputs_of(job.images, prompt_of(job), job_id=job.id)
    return {
        "prompt": queue_item(job),
        "outputs": outputs,
        "status": {
            "status_str": "success" if isinstance(job.end, Completed) else "error",
            "completed": isinstance(job.end, Completed),
            "messages": _messages(job),
        },
        "meta": {
            node: {
                "node_id": node,
                "display_node": node,
                "parent_node": None,
                "real_node_id": node,
            }
            for node in outputs
        },
    }


def job_item(job: Job, *, with_request: bool = False) -> dict[str, Any]:
    """Return a job in the format of `/jobs`. `with_request` adds its request and its results."""
    outputs = outputs_of(job.images, prompt_of(job), job_id=job.id)
    shown = [(node, each) for node, files in outputs.items() for each in files.get("images", ())]
    item: dict[str, Any] = {
        "id": job.id,
        "status": _STATUS[state_of(job)],
        "priority": number_of(job),
        "create_time": milliseconds(job.submitted_at),
        "execution_start_time": job.started_at and milliseconds(job.started_at),
        "execution_end_time": job.ended_at and milliseconds(job.ended_at),
        "outputs_count": len(job.images),
        "previewable_outputs_count": len(shown),
        "preview_output": None,
        "execution_error": error_of(job) if isinstance(job.end, Failed) else None,
        "workflow_id": None,
    }
    if shown:
        node, last = shown[-1]
        item["preview_output"] = {**last, "nodeId": node, "mediaType": "images"}
    if with_request:
        item["workflow"] = {"prompt": prompt_of(job), "extra_data": _extra_data(job)}
        item["outputs"] = outputs
        item["update_time"] = milliseconds(job.ended_at or job.started_at or job.submitted_at)
        item["execution_status"] = history_item(job)["status"] if job.end else None
    return item


def error_of(job: Job, *, node: str = "", class_type: str = "") -> dict[str, Any]:
    """Describe the error that ended a job, and the node of the error if the node is known."""
    error: dict[str, Any] = {
        "prompt_id": job.id,
        "node_id": node,
        "node_type": class_type,
        "executed": sorted({image.node for image in job.images if image.node is not None}),
        "timestamp": milliseconds(job.ended_at or job.submitted_at),
    }
    if isinstance(job.end, Failed):
        error |= {
            "exception_message": job.end.message,
            "exception_type": job.end.code or "error",
            "traceback": [],
            "current_inputs": {},
            "current_outputs": [],
        }
    return error


def _messages(job: Job) -> list[list[Any]]:
    messages: list[list[Any]] = []
    if job.started_at is not None:
        began = {"prompt_id": job.id, "timestamp": milliseconds(job.started_at)}
        messages += [["execution_start", began], ["execution_cached", {"nodes": [], **began}]]
    ended = {"prompt_id": job.id, "timestamp": milliseconds(job.ended_at or job.submitted_at)}
    match job.end:
        case Completed():
            messages.append(["execution_success", ended])
        case Failed():
            messages.append(["execution_error", error_of(job)])
        case Cancelled():
            messages.append(["execution_interrupted", error_of(job)])
    return messages


def _extra_data(job: Job) -> dict[str, Any]:
    extra: dict[str, Any] = dict(job.submitted.request.get("extra_data") or {})
    if job.submitted.client_id:
        extra["client_id"] = job.submitted.client_id
    return extra


def _linked(prompt: dict[str, Any]) -> set[str]:
    """Return the nodes whose outputs are inputs of other nodes.

    All other nodes of a recorded graph are output nodes.
    """
    return {
        each[0]
        for node in prompt.values()
        for each in node.get("inputs", {}).values()
        if isinstance(each, list) and each and isinstance(each[0], str)
    }
