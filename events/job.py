"""Folds the state of a job from its events. The functions are pure."""

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
    ComfyUIServer,
    Completed,
    DispatchFailed,
    End,
    Erased,
    Event,
    Failed,
    ImageStored,
    InputFile,
    Poster,
    Started,
    Submitted,
    Unreadable,
)


@dataclass(frozen=True, slots=True)
class Job:
    """The state of a job after its events so far."""

    id: str
    version: int
    """The number of folded events."""
    position: int
    """The stream sequence of the last event. The next append expects this sequence."""
    submitted: Submitted
    submitted_at: datetime
    traceparent: str | None = None
    attempts: int = 0
    blamed_attempts: int = 0
    """The number of attempts that failed and were blamed on the job."""
    bystander_attempts: int = 0
    """The number of attempts that failed with `Blame.BYSTANDER`."""
    has_running_attempt: bool = False
    """Whether the last attempt is running: neither its failure nor the end of the job is recorded.
    """
    is_exclusive: bool = False
    """Whether the last attempt is exclusive: no other job should run on the engine."""
    is_suspect: bool = False
    """Whether an attempt has failed with `Blame.SUSPECT`. Further attempts are exclusive."""
    actor: str | None = None
    """The actor of the last `Started`. Only this actor may write."""
    comfyui: ComfyUIServer | None = None
    """The ComfyUI server of the last attempt, if the last `Started` names one."""
    started_at: datetime | None = None
    images: tuple[ImageStored, ...] = ()
    """The images, sorted by index. Of several images with one index, the first is kept."""
    dispatch_failures: int = 0
    last_failure: str | None = None
    last_failure_code: str | None = None
    cancel_requested: bool = False
    end: End | None = None
    ended_at: datetime | None = None
    erased: bool = False
    """Whether the job is erased. Then `submitted` has only owner, flavour and endpoint."""
    log_bytes: int = 0
    """The size of all events of the job in bytes."""

    @property
    def deadline(self) -> datetime:
        return self.submitted_at + timedelta(seconds=self.submitted.deadline_s)

    @property
    def due_at(self) -> datetime:
        """The time at which the job expires in its present state.

        Before the first attempt, this time may be earlier than the deadline, by the terms of the
        job.
        """
        terms = self.submitted.terms
        if self.attempts or terms is None or terms.queue_timeout_s is None:
            return self.deadline
        return min(self.deadline, self.submitted_at + timedelta(seconds=terms.queue_timeout_s))

    @property
    def result_bytes(self) -> int:
        """The size in bytes of the files; before the end, their largest possible size."""
        stored = sum(file.size_bytes for file in self.files)
        cost = self.submitted.cost
        return stored if self.end is not None or cost is None else max(stored, cost.result_bytes)

    @property
    def files(self) -> list[ImageStored | Poster]:
        """All files of the job in the image store, except its history."""
        return [file for image in self.images for file in image.files]

    def image(self, index: int) -> ImageStored | None:
        return next((image for image in self.images if image.index == index), None)


def fold(events: Iterable[Event], job: Job | None = None) -> Job | None:
    """Return the state after `events`, starting from `job`; None without `Submitted` or `Erased`.

    Events that `job` already includes are skipped, so repeated folding changes nothing. Raises
    JobOfLaterVersion or JobDamaged at an event that cannot be read, because it may change the
    meaning of later events.
    """
    for event in from_erasure(list(events)):
        if isinstance(event.data, Unreadable) and not _has_seen(job, event):
            raise unreadable(event)
        job = _fold_one(event, job)
    return job


def fold_readable(events: Iterable[Event]) -> Job | None:
    """Return the state before the first unreadable event, for display and not for decisions."""
    return fold(takewhile(is_readable, from_erasure(list(events))))


def fold_for_submission(events: Iterable[Event], job: Job | None = None) -> Job | None:
    """Return the readable state of a job, for a submission with the same id.

    Such a submission adds no event. Raises JobOfLaterVersion or JobDamaged if no state can be read.
    """
    events = list(events)
    return fold_readable(events) or fold(events, job)


def fold_for_erasure(events: Iterable[Event], job: Job | None = None) -> Job | None:
    """Return the state for an erasure: unreadable events change only version and position."""
    for event in events:
        if isinstance(event.data, Unreadable):
            job = job and _passed(event, job)
        else:
            job = _fold_one(event, job)
    return job


def is_readable(event: Event) -> bool:
    return not isinstance(event.data, Unreadable)


def unreadable(event: Event) -> JobOfLaterVersion | JobDamaged:
    return JobDamaged() if isinstance(event.data, Broken) else JobOfLaterVersion()


def from_erasure(events: Sequence[Event]) -> Sequence[Event]:
    """Return the events from the first `Erased` on, or all events if the job is not erased."""
    erasures = (index for index, event in enumerate(events) if isinstance(event.data, Erased))
    return events[next(erasures, 0) :]


def _has_seen(job: Job | None, event: Event) -> bool:
    """Return whether `job` already includes the event, or was erased before the event."""
    return job is not None and (job.erased or event.position <= job.position)


def _passed(event: Event, job: Job) -> Job:
    """Return the job with the position and the version of an unreadable event.

    The version of a broken event is unknown, so it counts as the next version.
    """
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
    """Return the state of an erased job, which does not depend on earlier events."""
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
            return _started(with_interrupted_attempt(job), started, event.time)
        case ImageStored() as image if job.image(image.index) is None:
            images = tuple(sorted((*job.images, image), key=lambda stored: stored.index))
            return replace(job, images=images)
        case AttemptFailed(message=message, blame=blame, code=code):
            job = _after_failure(job, blame)
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
        has_running_attempt=True,
        is_exclusive=bool(started.exclusive),
        comfyui=started.comfyui,
    )


def with_interrupted_attempt(job: Job) -> Job:
    """Return the job after an interruption of its last attempt, if it is running.

    An attempt is interrupted if no failure was recorded, because its machine died or could not be
    reached. (If only the job actor dies, the dispatcher records a failure.) An interruption makes
    the job a suspect, but is not blamed on it.
    """
    if not job.has_running_attempt:
        return job
    job = _after_failure(job, Blame.SUSPECT)
    return replace(job, last_failure="the worker died", last_failure_code=None)


def _after_failure(job: Job, blame: Blame | None) -> Job:
    is_blamed = job.has_running_attempt and blame is None
    is_bystander = job.has_running_attempt and blame is Blame.BYSTANDER
    return replace(
        job,
        blamed_attempts=job.blamed_attempts + is_blamed,
        bystander_attempts=job.bystander_attempts + is_bystander,
        has_running_attempt=False,
        is_suspect=job.is_suspect or blame is Blame.SUSPECT,
    )


def sizes_of(files: Mapping[str, InputFile] | None) -> dict[str, tuple[int, int]]:
    """Return the recorded widths and heights of the files in pixels, by name."""
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
