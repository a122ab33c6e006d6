"""Encodes the messages of event streams as Server-Sent Events.

Most messages contain a stored event in the CloudEvents format.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from fastapi.sse import format_sse_event

from events.cloud_events import encode
from events.job_progress import JobProgress
from events.result import Status, UrlFor, status_of
from events.types import (
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    DispatchFailed,
    Erased,
    Event,
    EventData,
    Failed,
    ImageStored,
    Started,
    Submitted,
)
from serve_app.live.listener import LiveEvent
from serve_app.live.queue_positions import QueuePosition

_SHOWN: Mapping[type[EventData], set[str]] = {
    Submitted: {
        "flavour",
        "endpoint",
        "images",
        "deadline_s",
        "alone",
        "preview",
        "cost",
        "retry_of",
    },
    Started: {"attempt", "exclusive"},
    ImageStored: {
        "index",
        "attempt",
        "size_bytes",
        "width",
        "height",
        "seed",
        "media_type",
        "duration_s",
        "text",
    },
    AttemptFailed: {"attempt", "message", "code"},
    DispatchFailed: {"failure", "message"},
    CancelRequested: set(),
    Completed: {"images", "timing"},
    Failed: {"message", "code", "dead_letter"},
    Cancelled: {"message"},
    Erased: {"flavour", "endpoint"},
}
"""The members of each event that streams send. Events of other types are not sent."""
RETRY_MS = 1000
KEEP_ALIVE = format_sse_event(comment="keep-alive")


def begin_message(after: int) -> bytes:
    """Encode the first message of a stream: the delay before reconnecting, and the offset `after`.

    With the offset, a client can resume a stream that was interrupted before its first event.
    """
    return format_sse_event(retry=RETRY_MS, id=str(after))


def is_shown(event: Event) -> bool:
    return type(event.data) in _SHOWN


def stored_message(event: Event, url_for: UrlFor) -> bytes:
    """Encode an event of the log with its offset as the id. `is_shown(event)` must be true."""
    data = event.data.model_dump(mode="json", include=_SHOWN[type(event.data)], exclude_none=True)
    if isinstance(event.data, ImageStored):
        data["url"] = url_for(event.job_id, event.data)
        if event.data.poster is not None:
            data["poster_url"] = url_for(event.job_id, event.data.poster)
    return format_sse_event(
        event=event.data.type_name.split(".")[2],
        data_str=encode(event, data=data).decode(),
        id=str(event.position),
    )


def live_event(event: Event, url_for: UrlFor) -> LiveEvent:
    """Encode an event for all listeners. `is_shown(event)` must be true."""
    return LiveEvent(event, stored_message(event, url_for))


def progress_message(job_id: str, progress: JobProgress) -> bytes:
    """Encode a progress message. The message has no id, because progress is not stored."""
    members: dict[str, Any] = {
        "request_id": job_id,
        "progress": round(progress.fraction, 4),
        "step": progress.done,
        "steps": progress.total,
        "node": progress.node,
        "class_type": progress.class_type,
        "rows": progress.rows,
        "images": progress.images,
    }
    return format_sse_event(event="progress", data_str=json.dumps(_without_none(members)))


def preview_message(job_id: str, progress: JobProgress, preview: bytes) -> bytes:
    members = {
        "request_id": job_id,
        "step": progress.done,
        "steps": progress.total,
        "jpeg": b64encode(preview).decode(),
    }
    return format_sse_event(event="preview", data_str=json.dumps(members))


def position_message(job_id: str, position: QueuePosition) -> bytes:
    return format_sse_event(
        event="queued",
        data_str=json.dumps(_without_none({"request_id": job_id, **position.as_members()})),
    )


def status_at(event: Event) -> Status:
    """Return the status of the job after the event."""
    match event.data:
        case Completed() | Failed() | Cancelled() as end:
            return status_of(end)
        case Erased():
            return Status.FAILED
        case _:
            return Status.RUNNING


def _without_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
