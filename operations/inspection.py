"""Describes one job for operators: its history in sentences, and its data in each store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from operator import attrgetter
from typing import Any

from events.cloud_events import decode_all
from events.errors import HistoryBroken
from events.history import StoredHistory, read_history
from events.job import Job, fold, fold_readable
from events.types import (
    AttemptFailed,
    CallbackAttempted,
    CallbackDelivered,
    CallbackExhausted,
    CallbackWithheld,
    Cancelled,
    CancelRequested,
    Completed,
    DeadLetter,
    DispatchFailed,
    Erased,
    Event,
    EventData,
    Failed,
    ImageStored,
    RedeliveryRequested,
    Started,
    Submitted,
    Unknown,
    Unreadable,
)
from operations.stores import Stores, stored_of
from storage.images import ImageNotFound


@dataclass(frozen=True, slots=True)
class Inspection:
    job_id: str
    steps: list[Step]
    now: dict[str, Any]
    """The current state of the job, and its data in each store."""
    request: dict[str, Any] | None
    """The body of the job's request; None without `with_request`, or if the request was erased."""


async def inspect_job(stores: Stores, job_id: str, *, with_request: bool) -> Inspection | None:
    """Collect the data of a job from all stores. Return None if no store has the job.

    Raises the errors of the stores.
    """
    row = (await stores.rows.jobs([job_id])).get(job_id)
    found = await stored_of(stores, [job_id])
    if row is None and not found:
        return None
    stored = found.get(job_id, StoredHistory(job_id))
    events = decode_all(stored.events, job_id=job_id)
    deliveries = decode_all(stored.deliveries, job_id=job_id)
    job = fold_readable(events)
    now = {
        "state": _state(job),
        "attempts": job.attempts if job else 0,
        "charged_attempts": job.blamed_attempts if job else 0,
        "events": len(events),
        "delivery_events": len(deliveries),
        "kept_in": await _kept_in(stores, job_id),
        "row_version": row.version if row else None,
        "job_queue": job is not None and await stores.queue.has(job),
        "callback_queue": job is not None and await stores.callbacks.has(job),
        "images": [
            await _image(stores, file.key, image.index)
            for image in job.images
            for file in image.files
        ]
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
    return "running" if job.has_running_attempt else "waiting"


async def _kept_in(stores: Stores, job_id: str) -> list[str]:
    """Return where the events of the job are: `log`, the key of its history object, or both."""
    kept_in = ["log"] if await stores.log.read_raw([job_id]) else []
    for key in (await stores.rows.histories([job_id])).values():
        try:
            await read_history(stores.images, key)
            kept_in.append(key)
        except ImageNotFound:
            kept_in.append(f"{key} (missing)")
        except HistoryBroken:
            kept_in.append(f"{key} (damaged)")
    return kept_in


async def _image(stores: Stores, key: str, index: int) -> dict[str, Any]:
    try:
        size_bytes: int | None = await stores.images.size(key)
    except ImageNotFound:
        size_bytes = None
    return {"index": index, "key": key, "stored_bytes": size_bytes}


def _request(events: list[Event]) -> dict[str, Any] | None:
    submitted = events[0].data if events else None
    if not isinstance(submitted, Submitted):
        return None
    return {"request": submitted.request, "callback_url": submitted.callback_url}


SERVICE = "the service"
CALLER = "a caller"


@dataclass(frozen=True, slots=True)
class Step:
    """One event in words for operators, without content of the request."""

    at: datetime
    who: str
    what: str
    type: str
    charged: bool | None = None
    """Whether the attempt that ended counts against the job, or None if no attempt ended."""


def story(events: Sequence[Event], deliveries: Sequence[Event]) -> list[Step]:
    """Return the steps of a job and of its delivery, in order of time."""
    steps = merge(_job_steps(events), _delivery_steps(deliveries), key=attrgetter("at"))
    return list(steps)


def _delivery_steps(deliveries: Iterable[Event]) -> Iterator[Step]:
    for event in deliveries:
        who, what = _of_delivery(event.data)
        yield Step(event.time, who, what, event.data.type_name)


def _job_steps(events: Iterable[Event]) -> Iterator[Step]:
    job: Job | None = None
    is_readable, at = True, datetime.min.replace(tzinfo=UTC)
    for event in events:
        before = job
        is_readable = is_readable and not isinstance(event.data, Unreadable)
        if is_readable:
            job = fold([event], job)
        who, what = _of_job(event.data, before)
        # A message that is no event has no time, so the time of the previous event is shown.
        at = event.time if event.version else at
        yield Step(at, who, what, event.data.type_name, _charged(event.data, before, job))


def _charged(data: EventData, before: Job | None, after: Job | None) -> bool | None:
    if before is None or after is None or not before.has_running_attempt:
        return None
    if not isinstance(data, AttemptFailed | Started):
        return None
    return after.blamed_attempts > before.blamed_attempts


def _of_job(data: EventData, before: Job | None) -> tuple[str, str]:
    """Return who caused an event of a job, and a description of the event."""
    match data:
        case Submitted():
            return f"{data.owner}, key {data.key_id}", _submitted(data)
        case Started() | ImageStored() | AttemptFailed() | Completed():
            return _of_attempt(data, before)
        case DispatchFailed():
            return "dispatcher", (
                f"the job could not be dispatched (failure {data.failure}): {data.message}"
            )
        case CancelRequested():
            return CALLER, "requested the cancellation"
        case Failed():
            dead = f", a dead letter ({data.dead_letter})" if data.dead_letter else ""
            is_stopped = data.dead_letter is DeadLetter.QUARANTINED
            who = "an administrator" if is_stopped else _runner(before)
            return who, f"failed{dead}: {data.message}"
        case Cancelled():
            return _runner(before, otherwise=CALLER), f"cancelled: {data.message}"
        case Erased():
            return CALLER, f"erased: a {data.flavour} job of {data.owner} on {data.endpoint}"
        case _:
            return _unreadable(data)


def _of_attempt(
    data: Started | ImageStored | AttemptFailed | Completed, before: Job | None
) -> tuple[str, str]:
    actor = _runner(before)
    match data:
        case Started():
            return data.actor, _started(data, before)
        case ImageStored():
            size = f"{data.width} × {data.height}, {data.size_bytes:,} bytes"
            return actor, f"stored image {data.index} of attempt {data.attempt}: {size}"
        case AttemptFailed():
            blame = f" ({data.blame})" if data.blame else ""
            return actor, f"attempt {data.attempt} failed{blame}: {data.message}"
        case Completed():
            return actor, f"completed with {data.images} images"


def _unreadable(data: EventData) -> tuple[str, str]:
    if isinstance(data, Unknown):
        return "a later version", f"an event that this version cannot read: {data.original_type}"
    return SERVICE, "a message that is not an event"


def _runner(before: Job | None, *, otherwise: str = SERVICE) -> str:
    """Return the actor that runs the job, or `otherwise` if no actor runs it."""
    is_running = before is not None and before.has_running_attempt and before.actor is not None
    return str(before.actor) if is_running and before is not None else otherwise


def _submitted(data: Submitted) -> str:
    parts = [f"submitted a {data.flavour} job to {data.endpoint}, lane {data.lane}"]
    if data.images:
        parts.append(f"for {data.images} images")
    if data.cost is not None:
        parts.append(f"of {data.cost.work:g} megapixel-steps")
    parts.append(f"within {data.deadline_s:g} s")
    if data.callback_url is not None:
        parts.append("with a callback")
    if data.image_puts:
        parts.append(f"with presigned URLs for {len(data.image_puts)} images")
    if data.retry_of is not None:
        parts.append(f"as a new submission of the job {data.retry_of}")
    return ", ".join(parts)


def _started(data: Started, before: Job | None) -> str:
    lost = (
        "; the attempt before ended without an event"
        if before and before.has_running_attempt
        else ""
    )
    alone = ", alone on the engine" if data.exclusive else ""
    version = data.comfyui.version if data.comfyui else None
    server = f" on ComfyUI {version}" if version else ""
    return f"began attempt {data.attempt}{server}{alone}{lost}"


def _of_delivery(data: EventData) -> tuple[str, str]:
    """Return who caused an event of a delivery, and a description of the event."""
    role = "callbacks"
    match data:
        case CallbackAttempted():
            answer = data.error if data.status is None else f"answer {data.status}"
            again = f", next attempt at {data.retry_at:%H:%M:%S}" if data.retry_at else ""
            told = "" if data.about is None else f" ({data.about})"
            text = f"attempt {data.attempt}{told} took {data.latency_s:.3f} s: {answer}{again}"
            return role, text
        case CallbackDelivered(attempt=0):
            return role, "ended the presigned uploads"
        case CallbackDelivered():
            return role, f"delivered with attempt {data.attempt}"
        case CallbackExhausted():
            return role, f"given up after {data.attempts} attempts: {data.message}"
        case CallbackWithheld():
            return role, "withheld for a while, because the receiver keeps failing"
        case RedeliveryRequested():
            return CALLER, "requested another delivery"
        case _:
            return _unreadable(data)
