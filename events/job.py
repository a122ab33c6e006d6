"""A job's state, folded from its events. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile

from events.errors import JobDamaged, JobOfLaterVersion
from events.ids import lane_of
from events.types import (
    AttemptFailed,
    Blame,
    Broken,
    Cancelled,
    CancelRequested,
    Completed,
    DispatchFailed,
    End,
    Erased,
    Event,
    Failed,
    ImageStored,
    InputFile,
    Started,
    Submitted,
    Unreadable,
)


@dataclass(frozen=True, slots=True)
class Job:
    """What the events of one job say so far."""

    id: str
    version: int
    """Number of events folded."""
    position: int
    """Stream sequence of the last event: what the next append expects."""
    submitted: Submitted
    submitted_at: datetime
    traceparent: str | None = None
    attempts: int = 0
    charged_attempts: int = 0
    """Those that failed by the job's own doing."""
    spared_attempts: int = 0
    """Those that failed while nothing was done for the job."""
    is_attempted: bool = False
    """The last attempt has not failed, as far as anybody has said."""
    is_exclusive: bool = False
    """The last attempt shares the engine with no other job."""
    is_suspect: bool = False
    """It may have broken what it ran on, so its next attempt is an exclusive one."""
    actor: str | None = None
    """The actor of the last `Started`: the only one that may write."""
    started_at: datetime | None = None
    images: tuple[ImageStored, ...] = ()
    """By index; the first stored of an index wins."""
    dispatch_failures: int = 0
    last_failure: str | None = None
    last_failure_code: str | None = None
    cancel_requested: bool = False
    end: End | None = None
    ended_at: datetime | None = None
    erased: bool = False
    """Its content is gone: `submitted` has only owner, flavour and endpoint."""
    log_bytes: int = 0
    """What its events take in the log."""

    @property
    def deadline(self) -> datetime:
        return self.submitted_at + timedelta(seconds=self.submitted.deadline_s)

    @property
    def due_at(self) -> datetime:
        """When it is given up where it waits now: for its first attempt it may have less time."""
        terms = self.submitted.terms
        if self.attempts or terms is None or terms.queue_timeout_s is None:
            return self.deadline
        return min(self.deadline, self.submitted_at + timedelta(seconds=terms.queue_timeout_s))

    @property
    def result_bytes(self) -> int:
        """What its files take in the image store; before its end the most that they may take."""
        stored = sum(image.size_bytes for image in self.images)
        cost = self.submitted.cost
        return stored if self.end is not None or cost is None else max(stored, cost.result_bytes)

    def image(self, index: int) -> ImageStored | None:
        return next((image for image in self.images if image.index == index), None)


def fold(events: Iterable[Event], job: Job | None = None) -> Job | None:
    """The state after `events`, continuing from `job`; None where nothing was submitted.

    Events that `job` has already seen are passed over, so that folding twice changes nothing.

    Raises JobOfLaterVersion, JobDamaged at an event that cannot be read: what stands behind it may
    mean something else than this version would take it for.
    """
    for event in from_erasure(list(events)):
        if isinstance(event.data, Unreadable) and not _has_seen(job, event):
            raise unreadable(event)
        job = _fold_one(event, job)
    return job


def fold_readable(events: Iterable[Event]) -> Job | None:
    """The state before the first event that cannot be read. It decides nothing: it is shown."""
    return fold(takewhile(is_readable, from_erasure(list(events))))


def fold_for_submission(events: Iterable[Event], job: Job | None = None) -> Job | None:
    """The job that has the id already, as far as it can be read: a submission adds nothing to it.

    Raises JobOfLaterVersion, JobDamaged where nothing of it can be read.
    """
    events = list(events)
    return fold_readable(events) or fold(events, job)


def fold_for_erasure(events: Iterable[Event], job: Job | None = None) -> Job | None:
    """The place of the last event, and what could be read: an erasure needs no more."""
    for event in events:
        if isinstance(event.data, Unreadable):
            job = job and _passed(event, job)
        else:
            job = _fold_one(event, job)
    return job


def is_readable(event: Event) -> bool:
    return not isinstance(event.data, Unreadable)


def unreadable(event: Event) -> JobOfLaterVersion | JobDamaged:
    """The error of whoever folds an event that cannot be read."""
    return JobDamaged() if isinstance(event.data, Broken) else JobOfLaterVersion()


def from_erasure(events: Sequence[Event]) -> Sequence[Event]:
    """The events from an `Erased` on, or all: nothing that stands before it counts."""
    places = (place for place, event in enumerate(events) if isinstance(event.data, Erased))
    return events[next(places, 0) :]


def _has_seen(job: Job | None, event: Event) -> bool:
    """Nothing comes back behind an erasure."""
    return job is not None and (job.erased or event.position <= job.position)


def _passed(event: Event, job: Job) -> Job:
    """A broken event does not say its version, but it is the one that follows."""
    if event.position <= job.position:
        return job
    version = max(event.version, job.version + 1)
    return replace(job, version=version, position=event.position)


def _fold_one(event: Event, job: Job | None) -> Job | None:
    if job is None:
        return _first(event)
    return _next(job, event) if event.version > job.version else job


def _first(event: Event) -> Job | None:
    match event.data:
        case Submitted() as submitted:
            return Job(
                id=event.job_id,
                version=event.version,
                position=event.position,
                submitted=submitted,
                submitted_at=event.time,
                traceparent=event.traceparent,
                log_bytes=event.size_bytes,
            )
        case Erased() as erased:
            return _erased(event, erased)
        case _:
            return None


def _erased(event: Event, data: Erased) -> Job:
    """The same from this event alone as from all that stood before it."""
    blank = Submitted(
        flavour=data.flavour,
        owner=data.owner,
        key_id="",
        endpoint=data.endpoint,
        lane=lane_of(data.owner),
        request={},
        fingerprint="",
    )
    return Job(
        id=event.job_id,
        version=event.version,
        position=event.position,
        submitted=blank,
        submitted_at=data.submitted_at,
        end=Cancelled(message="The job was erased."),
        ended_at=event.time,
        erased=True,
        log_bytes=event.size_bytes,
    )


def _next(job: Job, event: Event) -> Job:
    if isinstance(event.data, Erased):
        return _erased(event, event.data)
    log_bytes = job.log_bytes + event.size_bytes
    job = replace(job, version=event.version, position=event.position, log_bytes=log_bytes)
    if job.end is not None:
        return job
    match event.data:
        case Started() as started:
            return _started(after_break_off(job), started, event.time)
        case ImageStored() as image if job.image(image.index) is None:
            images = tuple(sorted((*job.images, image), key=lambda stored: stored.index))
            return replace(job, images=images)
        case AttemptFailed(message=message, blame=blame, code=code):
            job = _charged(job, blame)
            return replace(job, last_failure=message, last_failure_code=code)
        case DispatchFailed(failure=failure, message=message):
            job = replace(job, dispatch_failures=failure)
            return replace(job, last_failure=message, last_failure_code=None)
        case CancelRequested():
            return replace(job, cancel_requested=True)
        case Completed() | Failed() | Cancelled() as end:
            return replace(job, end=end, ended_at=event.time)
        case _:
            return job


def _started(job: Job, started: Started, time: datetime) -> Job:
    return replace(
        job,
        attempts=started.attempt,
        actor=started.actor,
        started_at=job.started_at or time,
        is_attempted=True,
        is_exclusive=bool(started.exclusive),
    )


def after_break_off(job: Job) -> Job:
    """The job, if its last attempt has ended without a word: the machine died, or is not reached.

    Whoever sees a job actor die by itself says so, so this is never charged.
    """
    if not job.is_attempted:
        return job
    job = _charged(job, Blame.SUSPECT)
    return replace(job, last_failure="the worker died", last_failure_code=None)


def _charged(job: Job, blame: Blame | None) -> Job:
    """The job, once its last attempt has failed."""
    is_charged = job.is_attempted and blame is None
    is_spared = job.is_attempted and blame is Blame.BYSTANDER
    return replace(
        job,
        charged_attempts=job.charged_attempts + is_charged,
        spared_attempts=job.spared_attempts + is_spared,
        is_attempted=False,
        is_suspect=job.is_suspect or blame is Blame.SUSPECT,
    )


def sizes_of(files: Mapping[str, InputFile] | None) -> dict[str, tuple[int, int]]:
    """Width and height of the files by their names, as far as they were recorded."""
    return {
        name: (file.width, file.height)
        for name, file in (files or {}).items()
        if file.width is not None and file.height is not None
    }


def timed_out_message(job: Job) -> str:
    if job.due_at < job.deadline:
        waited_s = (job.due_at - job.submitted_at).total_seconds()
        return f"Timed out: the job did not start within {waited_s:g} s."
    return f"Timed out: the job did not end within {job.submitted.deadline_s:g} s."
