"""What streams send: Server-Sent Events, most of which hold a stored event as a CloudEvent."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from fastapi.sse import format_sse_event

from events.result import Status, UrlFor, status_of
from events.streams.log_streams import LogPlace
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
from events.wire.cloud_events import encode
from events.wire.progress import JobProgress
from serve_app.live.listener import LiveEvent
from serve_app.live.queue_places import QueuePlace

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
    ImageStored: {"index", "attempt", "size_bytes", "width", "height", "seed", "media_type"},
    AttemptFailed: {"attempt", "message", "code"},
    DispatchFailed: {"failure", "message"},
    CancelRequested: set(),
    Completed: {"images", "timing"},
    Failed: {"message", "code", "dead_letter"},
    Cancelled: {"message"},
    Erased: {"flavour", "endpoint"},
}
"""The members that watchers see of each event. Neither the request nor what only the service needs
is among them; an event that is not here is not sent.
"""
RETRY_MS = 1000
KEEP_ALIVE = format_sse_event(comment="keep-alive")


def begin_message(after: LogPlace) -> bytes:
    """The first that each stream sends: how long to wait before another try, and from where on.

    So one that breaks before its first event goes on from where it began.
    """
    return format_sse_event(retry=RETRY_MS, id=str(after))


def is_shown(event: Event) -> bool:
    return type(event.data) in _SHOWN


def stored_message(event: Event, url_for: UrlFor) -> bytes:
    """An event of the log under its position there. `event` must be shown."""
    data = event.data.model_dump(mode="json", include=_SHOWN[type(event.data)], exclude_none=True)
    if isinstance(event.data, ImageStored):
        data["url"] = url_for(event.job_id, event.data)
    return format_sse_event(
        event=event.data.type_name.split(".")[2],
        data_str=encode(event, data=data).decode(),
        id=str(event.position),
    )


def live_event(event: Event, url_for: UrlFor) -> LiveEvent:
    """As all who watch are sent it. `event` must be shown."""
    return LiveEvent(event, stored_message(event, url_for))


def message_at(live: LiveEvent, place: LogPlace) -> bytes:
    """The message under the place that a stream has come to with it, from where it can go on.

    With one stream of the log, and of one job, that is the event's position.
    """
    if isinstance(place, int):
        return live.message
    return live.message.replace(_id_line(live.position), _id_line(place), 1)


def _id_line(place: LogPlace) -> bytes:
    return f"\nid: {place}\n".encode()


def progress_message(job_id: str, progress: JobProgress) -> bytes:
    """Has no id: it is not stored, and the next one takes its place."""
    said: dict[str, Any] = {
        "request_id": job_id,
        "progress": round(progress.fraction, 4),
        "step": progress.done,
        "steps": progress.total,
        "node": progress.node,
        "class_type": progress.class_type,
        "rows": progress.rows,
        "images": progress.images,
    }
    return format_sse_event(event="progress", data_str=json.dumps(_without_none(said)))


def preview_message(job_id: str, progress: JobProgress, preview: bytes) -> bytes:
    """Has no id, as progress."""
    said = {
        "request_id": job_id,
        "step": progress.done,
        "steps": progress.total,
        "jpeg": b64encode(preview).decode(),
    }
    return format_sse_event(event="preview", data_str=json.dumps(said))


def place_message(job_id: str, place: QueuePlace) -> bytes:
    """Has no id, as progress."""
    return format_sse_event(
        event="queued", data_str=json.dumps(_without_none({"request_id": job_id, **place.told()}))
    )


def status_at(event: Event) -> Status:
    """The state of the job once this has happened."""
    match event.data:
        case Completed() | Failed() | Cancelled() as end:
            return status_of(end)
        case Erased():
            return Status.FAILED
        case _:
            return Status.RUNNING


def _without_none(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in said.items() if value is not None}
