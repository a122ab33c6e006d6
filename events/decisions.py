"""Decides which events a command adds to a job's history.

The functions are pure. They use no clock and no random values, and make no ids. A command adds no
events if it changes nothing, or if its actor may no longer write to the job. This is a normal
outcome and not an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, assert_never

from events.job import Job, timed_out_message, with_interrupted_attempt
from events.result import FailureCode
from events.types import (
    AttemptFailed,
    Blame,
    Cancelled,
    CancelRequested,
    ComfyUIServer,
    Completed,
    DeadLetter,
    DispatchFailed,
    Erased,
    Failed,
    FailedNode,
    ImageStored,
    JobEvent,
    Started,
    Submitted,
    Timing,
)

WHAT_TO_DO = "Submit the job again. If it fails again, report the id of the job to the operator."
"""Advice for the caller of a job that the service has given up."""


@dataclass(frozen=True, slots=True)
class Submit:
    submitted: Submitted


@dataclass(frozen=True, slots=True)
class Start:
    """Begin an attempt as `actor`, or end a job that must not be attempted again."""

    actor: str
    max_attempts: int
    """The largest number of attempts that are blamed on a job, unless its terms have a number."""
    max_attempts_total: int
    """The largest number of failed attempts, except attempts as a bystander."""
    now: datetime
    after_attempts: int | None = None
    """The number of attempts when the job was dispatched. If another holder has started the job
    since then, nothing is added. With None the number is not checked.
    """
    given_at: datetime | None = None
    comfyui: ComfyUIServer | None = None


@dataclass(frozen=True, slots=True)
class StoreImage:
    actor: str
    image: ImageStored


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """Record that the attempt of `actor` has failed.

    `final` means that another attempt would fail in the same way, for example because of an invalid
    graph or a missing checkpoint. `blame` is None if the job is certainly the cause. If an actor
    has died, the process that detects its death executes this command. A failure is recorded once.
    """

    actor: str
    message: str
    final: bool
    blame: Blame | None = None
    code: str | None = None
    """A `FailureCode`."""
    node: FailedNode | None = None
    is_joined: bool = False
    """Whether other jobs may have run during an exclusive attempt. A suspect is then not blamed."""


@dataclass(frozen=True, slots=True)
class FailDispatch:
    """Record that a job actor died before it began an attempt.

    Nothing is added if the number of attempts is no longer `attempts`.
    """

    attempts: int
    message: str
    max_failures: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End a job that the service cannot run."""

    message: str
    code: FailureCode = FailureCode.SERVICE_FAILED


@dataclass(frozen=True, slots=True)
class FailForRemovedEndpoint:
    """End a job that has no running attempt, because its endpoint is removed."""

    message: str


@dataclass(frozen=True, slots=True)
class Complete:
    actor: str
    images: int
    timing: Timing | None = None
    beside: tuple[str, ...] | None = None
    notes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """A caller requests cancellation. A job without a running attempt ends at once."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """An administrator ends a job at once, even if it runs. `reason` is shown to its owner."""

    reason: str


@dataclass(frozen=True, slots=True)
class Erase:
    """A caller requests erasure of the job's content. A job that has not ended is cancelled."""


@dataclass(frozen=True, slots=True)
class Expire:
    """End a job that has no running attempt and has exceeded its deadline.

    `why` is the reason for the wait, as a sentence for the caller.
    """

    now: datetime
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ConfirmCancel:
    """End a job whose actor has stopped because of a request to cancel."""

    actor: str


OpenJobCommand = (
    Start
    | Expire
    | StoreImage
    | FailAttempt
    | FailDispatch
    | GiveUp
    | FailForRemovedEndpoint
    | Complete
    | Cancel
    | ConfirmCancel
    | Quarantine
)
"""The commands that add nothing to a job that has ended."""
Command = Submit | Erase | OpenJobCommand


def decide(command: Command, job: Job | None) -> tuple[JobEvent, ...]:
    """Return the events that `command` adds to `job`, in order; none if it changes nothing."""
    if isinstance(command, Submit):
        return () if job is not None else (command.submitted,)
    if isinstance(command, Erase):
        return () if job is None or job.erased else _erase(job)
    if job is None or job.end is not None:
        return ()
    if isinstance(command, Start) and command.after_attempts not in {None, job.attempts}:
        return ()
    if job.cancel_requested and not isinstance(command, StoreImage | Quarantine):
        return _decide_cancelled(command, job)
    return _decide(command, job)


def _decide_cancelled(command: OpenJobCommand, job: Job) -> tuple[JobEvent, ...]:
    """Decide for a job whose cancellation was requested.

    The caller has already got the answer that the job is cancelled. A command that would start, end
    or delay the job therefore cancels it.
    """
    match command:
        case Cancel():
            return ()
        case Start() | Expire():
            return (Cancelled(),)
        case _:
            return (Cancelled(),) if _decide(command, job) else ()


def _decide(command: OpenJobCommand, job: Job) -> tuple[JobEvent, ...]:
    match command:
        case Start():
            return _start(command, job)
        case Expire(now=now, why=why):
            message = timed_out_message(job) + (f" {why}" if why else "")
            timed_out = Failed(message=message, code=FailureCode.TIMEOUT)
            return (timed_out,) if now >= job.due_at else ()
        case FailDispatch():
            return _fail_dispatch(command, job)
        case Cancel():
            return _cancel(job)
        case FailForRemovedEndpoint(message=message):
            removed = GiveUp(message, FailureCode.ENDPOINT_REMOVED)
            return () if job.has_running_attempt else (_dead_letter(removed),)
        case GiveUp() | Quarantine():
            return (_dead_letter(command),)
        case StoreImage() | FailAttempt() | Complete() | ConfirmCancel():
            return _decide_for_actor(command, job) if job.actor == command.actor else ()
        case _ as never:
            assert_never(never)


def _dead_letter(command: GiveUp | Quarantine) -> Failed:
    match command:
        case GiveUp(message=message, code=code):
            return Failed(message=message, dead_letter=DeadLetter.UNDISPATCHABLE, code=code)
        case Quarantine(reason=reason):
            message = f"An administrator stopped this job: {reason}"
            code = FailureCode.QUARANTINED
            return Failed(message=message, dead_letter=DeadLetter.QUARANTINED, code=code)


def _start(command: Start, job: Job) -> tuple[JobEvent, ...]:
    if command.now >= job.due_at:
        return (Failed(message=timed_out_message(job), code=FailureCode.TIMEOUT),)
    job = with_interrupted_attempt(job)
    counted = job.attempts - job.bystander_attempts
    terms = job.submitted.terms
    most = (terms and terms.max_attempts) or command.max_attempts
    if job.blamed_attempts >= most or counted >= command.max_attempts_total:
        code = job.last_failure_code or FailureCode.ENGINE_FAILED
        return (Failed(message=_gave_up_message(job), code=code),)
    exclusive: Literal[True] | None = True if job.is_suspect else None
    started = Started(
        attempt=job.attempts + 1,
        actor=command.actor,
        exclusive=exclusive,
        given_at=command.given_at,
        comfyui=command.comfyui,
    )
    return (started,)


def _gave_up_message(job: Job) -> str:
    alone = ""
    if job.is_exclusive and job.blamed_attempts:
        alone = f", {job.blamed_attempts} of them with no other job on the engine"
    return f"Gave up after {job.attempts} attempts{alone}: {job.last_failure}"


def _fail_dispatch(command: FailDispatch, job: Job) -> tuple[JobEvent, ...]:
    if job.attempts != command.attempts:
        return ()
    failure = job.dispatch_failures + 1
    if failure < command.max_failures:
        return (DispatchFailed(failure=failure, message=command.message),)
    why = command.message.removesuffix(".")
    message = f"Gave up after the job could not be dispatched {failure} times: {why}. {WHAT_TO_DO}"
    return (_dead_letter(GiveUp(message)),)


def _cancel(job: Job) -> tuple[JobEvent, ...]:
    return (CancelRequested(),) if job.has_running_attempt else (Cancelled(),)


def _erase(job: Job) -> tuple[JobEvent, ...]:
    """Erase the job, and end it if it has not ended. Its actor can then write no more events."""
    erased = Erased(
        flavour=job.submitted.flavour,
        owner=job.submitted.owner,
        endpoint=job.submitted.endpoint,
        submitted_at=job.submitted_at,
    )
    return (erased,) if job.end is not None else (Cancelled(), erased)


def _decide_for_actor(
    command: StoreImage | FailAttempt | Complete | ConfirmCancel, job: Job
) -> tuple[JobEvent, ...]:
    match command:
        case StoreImage(image=image):
            return () if job.image(image.index) is not None else (image,)
        case FailAttempt(message=message, final=True, code=code, node=node):
            return (Failed(message=message, code=code, node=node),)
        case FailAttempt(message=message, blame=blame, code=code):
            if not job.has_running_attempt:
                return ()
            if job.is_exclusive and blame is Blame.SUSPECT and not command.is_joined:
                blame = None  # No other job was on the engine, so the job is blamed.
            attempt = job.attempts
            return (AttemptFailed(attempt=attempt, message=message, blame=blame, code=code),)
        case Complete(images=images, timing=timing, beside=beside, notes=notes):
            return (Completed(images=images, timing=timing, beside=beside, notes=notes),)
        case ConfirmCancel():
            return (Cancelled(),)
        case _ as never:
            assert_never(never)
