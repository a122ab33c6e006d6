"""One job for an operator: its story, and where each place has it now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from events.archive.segment import ArchivedJob
from events.job import Job, fold_readable
from events.types import Event, Submitted
from events.wire.cloud_events import decode_all
from serve_app.operations.places import Places, stored_of
from serve_app.operations.story import Step, story
from storage.images import ImageNotFound


@dataclass(frozen=True, slots=True)
class Inspection:
    job_id: str
    steps: list[Step]
    now: dict[str, Any]
    """Where the job stands, and what each place has of it."""
    request: dict[str, Any] | None
    """What was asked for; None where nobody asked to see it, or it is erased."""


async def inspect_job(places: Places, job_id: str, *, with_request: bool) -> Inspection | None:
    """None for a job that no place knows. Raises what the places raise."""
    row = (await places.rows.jobs([job_id])).get(job_id)
    found = await stored_of(places, [job_id])
    if row is None and not found:
        return None
    stored = found.get(job_id, ArchivedJob(job_id, ()))
    events = decode_all(stored.events, job_id=job_id)
    deliveries = decode_all(stored.deliveries, job_id=job_id)
    job = fold_readable(events)
    now = {
        "state": _state(job),
        "attempts": job.attempts if job else 0,
        "charged_attempts": job.charged_attempts if job else 0,
        "events": len(events),
        "delivery_events": len(deliveries),
        "kept_in": await _kept_in(places, stored),
        "row_version": row.version if row else None,
        "job_queue": job is not None and await places.queue.has(job),
        "callback_queue": job is not None and await places.callbacks.has(job),
        "images": [await _image(places, image.key, image.index) for image in job.images]
        if job
        else [],
    }
    request = _request(events) if with_request else None
    return Inspection(job_id, story(events, deliveries), now, request)


def _state(job: Job | None) -> str:
    if job is None:
        return "unknown"
    if job.erased:
        return "erased"
    if job.end is not None:
        return type(job.end).__name__.lower()
    return "running" if job.is_attempted else "waiting"


async def _kept_in(places: Places, stored: ArchivedJob) -> list[str]:
    """The log, the key of its segment, or both."""
    in_log = ["log"] if await places.log.stored([stored.job_id]) else []
    ref = await places.segments.find(stored.job_id)
    return in_log if ref is None else [*in_log, ref.key]


async def _image(places: Places, key: str, index: int) -> dict[str, Any]:
    try:
        size_bytes: int | None = await places.images.size(key)
    except ImageNotFound:
        size_bytes = None
    return {"index": index, "key": key, "stored_bytes": size_bytes}


def _request(events: list[Event]) -> dict[str, Any] | None:
    submitted = events[0].data if events else None
    if not isinstance(submitted, Submitted):
        return None
    return {"request": submitted.request, "callback_url": submitted.callback_url}
