"""What happened to a job and its callback, when, and who did it, from the events alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import merge
from operator import attrgetter

from events.job import Job, fold
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

SERVICE = "the service"
CALLER = "a caller"


@dataclass(frozen=True, slots=True)
class Step:
    """One event, as an operator wants to read it. It shows nothing of what was asked for."""

    at: datetime
    who: str
    what: str
    type: str
    charged: bool | None = None
    """Whether an attempt that ended counts against the job; None: none ended."""


def story(events: Sequence[Event], deliveries: Sequence[Event]) -> list[Step]:
    """The steps of a job and of its delivery, in order of time."""
    told = merge(_job_steps(events), _delivery_steps(deliveries), key=attrgetter("at"))
    return list(told)


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
        at = event.time if event.version else at  # what is no event has no time
        yield Step(at, who, what, event.data.type_name, _charged(event.data, before, job))


def _charged(data: EventData, before: Job | None, after: Job | None) -> bool | None:
    if before is None or after is None or not before.is_attempted:
        return None
    if not isinstance(data, AttemptFailed | Started):
        return None
    return after.charged_attempts > before.charged_attempts


def _of_job(data: EventData, before: Job | None) -> tuple[str, str]:
    """Who did it, and what."""
    match data:
        case Submitted():
            return f"{data.owner}, key {data.key_id}", _submitted(data)
        case Started() | ImageStored() | AttemptFailed() | Completed():
            return _of_attempt(data, before)
        case DispatchFailed():
            return "dispatcher", f"could not be dispatched, time {data.failure}: {data.message}"
        case CancelRequested():
            return CALLER, "asked to cancel"
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
        return "a later version", f"what this version cannot read: {data.original_type}"
    return SERVICE, "a message that is no event"


def _runner(before: Job | None, *, otherwise: str = SERVICE) -> str:
    """Who ends a job: the actor that runs it, or else not an actor."""
    is_running = before is not None and before.is_attempted and before.actor is not None
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
        parts.append(f"with addresses for {len(data.image_puts)} images")
    if data.retry_of is not None:
        parts.append(f"in the place of {data.retry_of}")
    return ", ".join(parts)


def _started(data: Started, before: Job | None) -> str:
    lost = "; the one before ended without a word" if before and before.is_attempted else ""
    alone = ", with the engine for itself" if data.exclusive else ""
    return f"began attempt {data.attempt}{alone}{lost}"


def _of_delivery(data: EventData) -> tuple[str, str]:
    """Who did it, and what."""
    role = "callbacks"
    match data:
        case CallbackAttempted():
            answer = data.error if data.status is None else f"answer {data.status}"
            again = f", again at {data.retry_at:%H:%M:%S}" if data.retry_at else ""
            told = "" if data.about is None else f" ({data.about})"
            text = f"try {data.attempt}{told} took {data.latency_s:.3f} s: {answer}{again}"
            return role, text
        case CallbackDelivered(attempt=0):
            return role, "put its images, as far as that could be done"
        case CallbackDelivered():
            return role, f"delivered with try {data.attempt}"
        case CallbackExhausted():
            return role, f"given up after {data.attempts} tries: {data.message}"
        case CallbackWithheld():
            return role, "kept back: the receiver is left alone for a while"
        case RedeliveryRequested():
            return CALLER, "asked for the delivery once more"
        case _:
            return _unreadable(data)
