"""What a command adds to a job's history. Pure: `decide` reads no clock and draws no id.

A command that has nothing to add, or comes from an actor that is no longer the job's writer, adds
nothing: that is an outcome, not an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, assert_never

from events.job import Job, after_break_off, timed_out_message
from events.job_cost import Timing
from events.result import FailureCode
from events.types import (
    AttemptFailed,
    Blame,
    Cancelled,
    CancelRequested,
    Completed,
    DeadLetter,
    DispatchFailed,
    Erased,
    Failed,
    ImageStored,
    JobEvent,
    Started,
    Submitted,
)

WHAT_TO_DO = "Submit it again; if that fails too, tell the operator its id."
"""What the caller of a job can do that the service gave up."""


@dataclass(frozen=True, slots=True)
class Submit:
    submitted: Submitted


@dataclass(frozen=True, slots=True)
class Start:
    """Begin an attempt as `actor`, or end a job that must not be attempted again."""

    actor: str
    max_attempts: int
    """How many attempts may be charged to a job whose endpoint does not say it."""
    max_attempts_total: int
    """How many may fail that the job was not spared, charged or not."""
    now: datetime
    after_attempts: int | None = None
    """How many attempts the job had when it was handed out. If it has had another number by now,
    somebody else has it, and nothing is added; None: whoever has it loses it."""
    given_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoreImage:
    actor: str
    image: ImageStored


@dataclass(frozen=True, slots=True)
class FailAttempt:
    """`final`: the next attempt would fail alike (a bad graph, a missing checkpoint).

    `blame`: None where the failure is surely the job's own. Whoever sees an actor die speaks in its
    name, so the attempt may have been said to fail before.
    """

    actor: str
    message: str
    final: bool
    blame: Blame | None = None
    code: str | None = None
    """A `FailureCode`."""
    is_joined: bool = False
    """Other jobs may have been on the engine, even where the attempt was to be exclusive."""


@dataclass(frozen=True, slots=True)
class FailDispatch:
    """No attempt has begun since the job had `attempts`, and the one who had it is gone."""

    attempts: int
    message: str
    max_failures: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The service cannot handle the job, whoever runs it."""

    message: str
    code: FailureCode = FailureCode.SERVICE_FAILED


@dataclass(frozen=True, slots=True)
class Dismiss:
    """End a job that waits for an attempt: its endpoint is removed."""

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
    """A caller asks; a job of which no attempt runs ends at once."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """An administrator ends a job at once, whoever runs it. `reason` is shown to its owner."""

    reason: str


@dataclass(frozen=True, slots=True)
class Erase:
    """A caller wants nothing of the job's content kept. One that has not ended is cancelled."""


@dataclass(frozen=True, slots=True)
class Expire:
    """End a job that waits for an attempt and has run out of time.

    `why`: what kept it waiting, as a sentence for its caller.
    """

    now: datetime
    why: str | None = None


@dataclass(frozen=True, slots=True)
class ConfirmCancel:
    """The running actor has stopped on a caller's request."""

    actor: str


OpenJobCommand = (
    Start
    | Expire
    | StoreImage
    | FailAttempt
    | FailDispatch
    | GiveUp
    | Dismiss
    | Complete
    | Cancel
    | ConfirmCancel
    | Quarantine
)
"""Adds nothing to a job that has ended."""
Command = Submit | Erase | OpenJobCommand


def decide(command: Command, job: Job | None) -> tuple[JobEvent, ...]:
    """The events that `command` adds to `job`, in order; none where it changes nothing."""
    if isinstance(command, Submit):
        return () if job is not None else (command.submitted,)
    if isinstance(command, Erase):
        return () if job is None or job.erased else _erase(job)
    if job is None or job.end is not None:
        return ()
    if isinstance(command, Start) and command.after_attempts not in {None, job.attempts}:
        return ()
    if job.cancel_requested and not isinstance(command, StoreImage | Quarantine):
        return _leave(command, job)
    return _decide(command, job)


def _leave(command: OpenJobCommand, job: Job) -> tuple[JobEvent, ...]:
    """The caller was told that it is cancelled, so whatever would end or delay it cancels it."""
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
        case Dismiss(message=message):
            removed = GiveUp(message, FailureCode.ENDPOINT_REMOVED)
            return () if job.is_attempted else (_dead_letter(removed),)
        case GiveUp() | Quarantine():
            return (_dead_letter(command),)
        case StoreImage() | FailAttempt() | Complete() | ConfirmCancel():
            return _write(command, job) if job.actor == command.actor else ()
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
    job = after_break_off(job)
    counted = job.attempts - job.spared_attempts
    terms = job.submitted.terms
    most = (terms and terms.max_attempts) or command.max_attempts
    if job.charged_attempts >= most or counted >= command.max_attempts_total:
        code = job.last_failure_code or FailureCode.ENGINE_FAILED
        return (Failed(message=_gave_up_message(job), code=code),)
    exclusive: Literal[True] | None = True if job.is_suspect else None
    attempt, given_at = job.attempts + 1, command.given_at
    return (Started(attempt=attempt, actor=command.actor, exclusive=exclusive, given_at=given_at),)


def _gave_up_message(job: Job) -> str:
    alone = ""
    if job.is_exclusive and job.charged_attempts:
        alone = f", {job.charged_attempts} of them with no other job on the engine"
    return f"Gave up after {job.attempts} attempts{alone}: {job.last_failure}"


def _fail_dispatch(command: FailDispatch, job: Job) -> tuple[JobEvent, ...]:
    if job.attempts != command.attempts:
        return ()
    failure = job.dispatch_failures + 1
    if failure < command.max_failures:
        return (DispatchFailed(failure=failure, message=command.message),)
    why = command.message.removesuffix(".")
    message = f"Gave up after it failed to be dispatched {failure} times: {why}. {WHAT_TO_DO}"
    return (_dead_letter(GiveUp(message)),)


def _cancel(job: Job) -> tuple[JobEvent, ...]:
    return (CancelRequested(),) if job.is_attempted else (Cancelled(),)


def _erase(job: Job) -> tuple[JobEvent, ...]:
    """Whoever runs the job meets the end and writes nothing more."""
    erased = Erased(
        flavour=job.submitted.flavour,
        owner=job.submitted.owner,
        endpoint=job.submitted.endpoint,
        submitted_at=job.submitted_at,
    )
    return (erased,) if job.end is not None else (Cancelled(), erased)


def _write(
    command: StoreImage | FailAttempt | Complete | ConfirmCancel, job: Job
) -> tuple[JobEvent, ...]:
    match command:
        case StoreImage(image=image):
            return () if job.image(image.index) is not None else (image,)
        case FailAttempt(message=message, final=True, code=code):
            return (Failed(message=message, code=code),)
        case FailAttempt(message=message, blame=blame, code=code):
            if not job.is_attempted:
                return ()
            if job.is_exclusive and blame is Blame.SUSPECT and not command.is_joined:
                blame = None  # no other job was there
            attempt = job.attempts
            return (AttemptFailed(attempt=attempt, message=message, blame=blame, code=code),)
        case Complete(images=images, timing=timing, beside=beside, notes=notes):
            return (Completed(images=images, timing=timing, beside=beside, notes=notes),)
        case ConfirmCancel():
            return (Cancelled(),)
        case _ as never:
            assert_never(never)
