"""What `/ws` sends: JSON with a type, and previews as bytes."""

from __future__ import annotations

import json
import struct
import time
from typing import Any, TypeAlias

from events.wire.progress import JobProgress

Message: TypeAlias = str | bytes

_PREVIEW, _PREVIEW_WITH_METADATA = 1, 4
_FORMATS = {"image/jpeg": 1, "image/png": 2}


def message(type: str, **data: Any) -> str:
    return json.dumps({"type": type, "data": data})


def of_job(type: str, job_id: str, **data: Any) -> str:
    """One that says when."""
    return message(type, prompt_id=job_id, timestamp=int(time.time() * 1000), **data)


def executing(job_id: str, node: str | None) -> str:
    """None: nothing of the job any more."""
    shown = {} if node is None else {"display_node": node}
    return message("executing", node=node, prompt_id=job_id, **shown)


def progress(job_id: str, node: str, said: JobProgress) -> list[Message]:
    """In both forms that ComfyUI has: clients know one or the other."""
    value = min(said.done, said.total)
    state = {
        "value": value,
        "max": said.total,
        "state": "running",
        "node_id": node,
        "prompt_id": job_id,
        "display_node_id": node,
        "parent_node_id": None,
        "real_node_id": node,
    }
    return [
        message("progress_state", prompt_id=job_id, nodes={node: state}),
        message("progress", value=value, max=said.total, prompt_id=job_id, node=node),
    ]


def picture(data: bytes, media_type: str) -> bytes:
    """As clients of every age read it."""
    return struct.pack(">II", _PREVIEW, _FORMATS.get(media_type, 2)) + data


def picture_of(job_id: str, node: str, data: bytes, media_type: str) -> bytes:
    """For a client that says that it reads metadata."""
    metadata = json.dumps(
        {
            "node_id": node,
            "display_node_id": node,
            "parent_node_id": None,
            "real_node_id": node,
            "prompt_id": job_id,
            "image_type": media_type,
        }
    ).encode()
    return struct.pack(">II", _PREVIEW_WITH_METADATA, len(metadata)) + metadata + data
