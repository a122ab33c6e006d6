"""Jobs in the formats of ComfyUI's queue, history and list of jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from events.job import Job
from events.result import State, state_of
from events.types import Cancelled, Completed, Failed, ImageStored
from serve_app.protocols.notes import note_members
from storage.file_names import PNG, SAFETENSORS, FileKind, kind_of

_ID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NAME = re.compile(
    rf"(?:(?:[^/\\]*_)?(?P<job_id>{_ID})|[^/\\]*)"
    r"_(?P<number>[0-9]{5,7})_\.(?P<suffix>[a-z0-9]{1,8})"
)
_PREFIX = "ComfyUI"
"""The prefix of the results of a node that has none."""
_LONGEST_PREFIX = 100
_PLACEHOLDER = re.compile("%([a-z_]+)%")
_COMPARED = "ImageCompare"
_TEMPORARY = {"PreviewImage", "MaskPreview", _COMPARED}
_KEYS: dict[FileKind, str] = {
    "image": "images",
    "video": "images",  # as ComfyUI's SaveVideo does
    "audio": "audio",
    "model": "3d",
    "text": "files",
    "file": "files",
}
_PREVIEWABLE = ("3d", "audio", "images")
"""The keys of outputs that ComfyUI's page can show. They are in rising order of preference,
because the last one found is shown.
"""
STATUSES = {
    State.QUEUED: "pending",
    State.RUNNING: "in_progress",
    State.COMPLETED: "completed",
    State.FAILED: "failed",
    State.CANCELLED: "cancelled",
}


def shown_name(image: ImageStored, *, job_id: str, prefix: str) -> str:
    """Return the name of a result, which differs from the names of all other results.

    `prefix` is the node's `filename_prefix`. Its folders are left out.
    """
    begin = prefix.replace("\\", "/").rpartition("/")[2]
    begin = "".join(each for each in begin if each.isprintable())[:_LONGEST_PREFIX]
    return f"{begin}_{job_id}_{image.index + 1:05}_.{_suffix(image)}"


@dataclass(frozen=True, slots=True)
class ResultName:
    """The parts of a name from `shown_name` by which the result is found."""

    job_id: str | None
    """The job; None in names of older versions, which only name a result of a folder."""
    index: int
    suffix: str

    @classmethod
    def of(cls, name: str) -> ResultName | None:
        """Return the parts of the name of a result; None for other names."""
        parts = _NAME.fullmatch(name)
        if parts is None:
            return None
        return cls(parts["job_id"], int(parts["number"]) - 1, parts["suffix"])

    def is_of(self, image: ImageStored) -> bool:
        return self.index == image.index and self.suffix == _suffix(image)


def _suffix(image: ImageStored) -> str:
    return image.name.rpartition(".")[2]


def _prefix_of(node: Mapping[str, Any], image: ImageStored, submitted_at: datetime) -> str:
    """Return the `filename_prefix` of an output node, with ComfyUI's placeholders replaced."""
    prefix = node.get("inputs", {}).get("filename_prefix", _PREFIX)
    if not isinstance(prefix, str):  # The prefix is computed by another node.
        return _PREFIX
    values = {
        "width": image.width,
        "height": image.height,
        "batch_num": image.index,
        "year": submitted_at.year,
        **{
            name: f"{getattr(submitted_at, name):02}"
            for name in ("month", "day", "hour", "minute", "second")
        },
    }
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), prefix)


def outputs_of(job: Job) -> dict[str, dict[str, Any]]:
    """Return the results of a job by output node, in the format of ComfyUI's history."""
    prompt = prompt_of(job)
    outputs: dict[str, dict[str, Any]] = {}
    for image in job.images:
        node = _first_output(prompt) if image.node is None else image.node
        found = outputs.setdefault(node, {})
        if image.text is not None:
            found.setdefault("text", []).append(image.text)  # as ComfyUI's PreviewAny does
            continue
        is_temporary = class_of(node, prompt) in _TEMPORARY
        prefix = _prefix_of(prompt.get(node, {}), image, job.submitted_at)
        shown = {
            "filename": shown_name(image, job_id=job.id, prefix=prefix),
            "subfolder": job.id,
            "type": "temp" if is_temporary else "output",
        }
        found.setdefault(_key_of(image.media_type), []).append(shown)
        if kind_of(image.media_type) == "video":
            found["animated"] = [True]
    for node, found in outputs.items():
        if class_of(node, prompt) == _COMPARED and "images" in found:
            outputs[node] = _compared(prompt[node], found["images"])
    return outputs


def _compared(node: Mapping[str, Any], images: list[Any]) -> dict[str, Any]:
    """Return the images of an `ImageCompare` under ComfyUI's keys. With two inputs, the first half
    of the images is of `image_a`.
    """
    inputs = node.get("inputs", {})
    if "image_a" in inputs and "image_b" in inputs:
        count = len(images) // 2
    else:
        count = len(images) if "image_a" in inputs else 0
    return {"a_images": images[:count], "b_images": images[count:]}


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
    outputs = outputs_of(job)
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


def history_v2_item(job: Job, *, with_graph: bool = False) -> dict[str, Any]:
    """Return the history item of a job that has ended, in the format of Comfy Cloud's version 2.

    Without the graph, the item also has no workflow of the editor.
    """
    extra = _extra_data(job)
    if not with_graph:
        extra.pop("extra_pnginfo", None)
    prompt = {"priority": number_of(job), "prompt_id": job.id, "extra_data": extra}
    if with_graph:
        prompt["prompt"] = prompt_of(job)
    return {
        "prompt_id": job.id,
        "create_time": milliseconds(job.submitted_at),
        "workflow_id": None,
        **history_item(job),
        "prompt": prompt,
    }


def job_item(job: Job, *, with_request: bool = False) -> dict[str, Any]:
    """Return a job in the format of `/jobs`. `with_request` adds its request and its results.

    As in ComfyUI, members without a value are left out.
    """
    outputs = outputs_of(job)
    shown = [
        (node, key, each)
        for node, files in outputs.items()
        for key in _PREVIEWABLE
        for each in files.get(key, ())
    ]
    item: dict[str, Any] = {
        "id": job.id,
        "status": STATUSES[state_of(job)],
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
        node, key, last = shown[-1]
        item["preview_output"] = {**last, "nodeId": node, "mediaType": key}
    if with_request:
        item["workflow"] = {"prompt": prompt_of(job), "extra_data": _extra_data(job)}
        item["outputs"] = outputs
        item["update_time"] = milliseconds(job.ended_at or job.started_at or job.submitted_at)
        item["execution_status"] = history_item(job)["status"] if job.end else None
    return {name: value for name, value in item.items() if value is not None}


def error_of(job: Job, *, node: str = "", class_type: str = "") -> dict[str, Any]:
    """Describe the error that ended a job. `node` is the last running node.

    It is used if the job does not record the node that failed.
    """
    failed = job.end.node if isinstance(job.end, Failed) else None
    if failed is not None:
        node, class_type = failed.id, failed.class_type
    error: dict[str, Any] = {
        "prompt_id": job.id,
        "node_id": node,
        "node_type": class_type,
        "executed": sorted({image.node for image in job.images if image.node is not None}),
        "timestamp": milliseconds(job.ended_at or job.submitted_at),
    }
    if isinstance(job.end, Failed):
        error |= {
            "exception_message": _without_node(job.end),
            "exception_type": failed.exception if failed else job.end.code or "error",
            "traceback": [],
            "current_inputs": {},
            "current_outputs": [],
        }
    return error


def _without_node(failed: Failed) -> str:
    """Return the message of the exception, without its class and its node."""
    if (node := failed.node) is None:
        return failed.message
    name = node.exception.rpartition(".")[2]
    text = failed.message.removeprefix(f"node {node.id} ({node.class_type}): ")
    return text.removeprefix(f"{name}: ")


def _messages(job: Job) -> list[list[Any]]:
    messages: list[list[Any]] = []
    if job.started_at is not None:
        began = {"prompt_id": job.id, "timestamp": milliseconds(job.started_at)}
        messages += [["execution_start", began], ["execution_cached", {"nodes": [], **began}]]
    ended = {"prompt_id": job.id, "timestamp": milliseconds(job.ended_at or job.submitted_at)}
    match job.end:
        case Completed():
            messages.append(["execution_success", {**ended, **note_members(job)}])
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
