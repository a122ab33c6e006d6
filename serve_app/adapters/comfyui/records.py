"""Jobs in the forms in which ComfyUI tells of them: in its queue, its history, its list of jobs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from events.job import Job
from events.result import State, state_of
from events.types import Cancelled, Completed, Failed
from serve_app.adapters.comfyui.files import outputs_of

_STATUS = {
    State.QUEUED: "pending",
    State.RUNNING: "in_progress",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


def number_of(job: Job) -> int:
    """Grows with the time of submission, as ComfyUI's number does."""
    return milliseconds(job.submitted_at)


def milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def prompt_of(job: Job) -> dict[str, Any]:
    prompt: dict[str, Any] = job.submitted.request.get("prompt") or {}
    return prompt


def queue_item(job: Job) -> list[Any]:
    """Number, id, graph, what else was sent, and the nodes that have results."""
    prompt = prompt_of(job)
    linked = _linked(prompt)
    outputs = [node for node in prompt if node not in linked]
    extra = {"create_time": milliseconds(job.submitted_at), **_extra_data(job)}
    return [number_of(job), job.id, prompt, extra, outputs]


def history_item(job: Job) -> dict[str, Any]:
    """Of a job that has ended."""
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
    """As the list of jobs has it, or as the job alone, with its request."""
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
    """What ended a job before it was completed, and at which node, where that is known."""
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
    told: list[list[Any]] = []
    if job.started_at is not None:
        began = {"prompt_id": job.id, "timestamp": milliseconds(job.started_at)}
        told += [["execution_start", began], ["execution_cached", {"nodes": [], **began}]]
    ended = {"prompt_id": job.id, "timestamp": milliseconds(job.ended_at or job.submitted_at)}
    match job.end:
        case Completed():
            told.append(["execution_success", ended])
        case Failed():
            told.append(["execution_error", error_of(job)])
        case Cancelled():
            told.append(["execution_interrupted", error_of(job)])
    return told


def _extra_data(job: Job) -> dict[str, Any]:
    extra: dict[str, Any] = dict(job.submitted.request.get("extra_data") or {})
    if job.submitted.client_id:
        extra["client_id"] = job.submitted.client_id
    return extra


def _linked(prompt: dict[str, Any]) -> set[str]:
    """The nodes that others follow. Nothing in a recorded graph follows an output node."""
    return {
        each[0]
        for node in prompt.values()
        for each in node.get("inputs", {}).values()
        if isinstance(each, list) and each and isinstance(each[0], str)
    }
