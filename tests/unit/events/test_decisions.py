from __future__ import annotations

from datetime import timedelta

import pytest

from events.decisions import (
    Cancel,
    Command,
    Complete,
    ConfirmCancel,
    Erase,
    Expire,
    FailAttempt,
    FailDispatch,
    GiveUp,
    Quarantine,
    Start,
    StoreImage,
    Submit,
    decide,
)
from events.types import (
    AttemptFailed,
    Blame,
    Cancelled,
    CancelRequested,
    Completed,
    DeadLetter,
    DispatchFailed,
    Erased,
    EventData,
    Failed,
    Flavour,
    Started,
)
from tests.support.events import START, folded, image, submitted

SUBMITTED = submitted(images=2, deadline_s=60.0)
FIRST = Started(attempt=1, actor="a")
LOST = AttemptFailed(attempt=1, message="Out of memory.")
ENDS: list[EventData] = [Completed(images=2), Failed(message="No."), Cancelled()]

WAITS = [SUBMITTED]
RUNS = [SUBMITTED, FIRST]
IS_LEAVING = [*RUNS, CancelRequested()]
WAITS_AGAIN = [*RUNS, LOST]
RUNS_AGAIN = [*WAITS_AGAIN, Started(attempt=2, actor="b")]


def start(*, max_attempts: int = 3, after_s: float = 1) -> Start:
    now = START + timedelta(seconds=after_s)
    return Start("z", max_attempts=max_attempts, max_attempts_total=9, now=now)


def of_the_writer(actor: str) -> list[Command]:
    """Every command that only the actor of the last `Started` may give."""
    return [
        StoreImage(actor=actor, image=image(0)),
        FailAttempt(actor=actor, message="No.", final=False),
        FailAttempt(actor=actor, message="No.", final=True),
        Complete(actor=actor, images=2),
        ConfirmCancel(actor=actor),
    ]


def fail_dispatch(*, attempts: int = 0, max_failures: int = 3) -> FailDispatch:
    return FailDispatch(attempts, message="The actor died.", max_failures=max_failures)


def name(command: Command) -> str:
    return type(command).__name__


def test_a_submission_makes_a_job() -> None:
    assert decide(Submit(SUBMITTED), None) == (SUBMITTED,)


@pytest.mark.parametrize("events", [WAITS, RUNS, [*RUNS, Completed(images=2)]])
def test_a_job_is_submitted_once(events: list[EventData]) -> None:
    assert decide(Submit(SUBMITTED), folded(events)) == ()


ANYBODYS: list[Command] = [start(), Cancel(), Quarantine("No."), GiveUp("No."), fail_dispatch()]
"""Commands that need no writer."""


@pytest.mark.parametrize("command", [*ANYBODYS, *of_the_writer("a")], ids=name)
def test_an_unknown_job_stays_unknown(command: Command) -> None:
    assert decide(command, None) == ()


@pytest.mark.parametrize("command", [*ANYBODYS, *of_the_writer("a")], ids=name)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_nothing_is_added_behind_an_end(command: Command, end: EventData) -> None:
    assert decide(command, folded([*RUNS, end])) == ()


@pytest.mark.parametrize("command", of_the_writer("a"), ids=name)
@pytest.mark.parametrize("events", [WAITS, RUNS_AGAIN], ids=["before a start", "replaced"])
def test_an_actor_that_is_not_the_writer_adds_nothing(
    command: Command, events: list[EventData]
) -> None:
    assert decide(command, folded(events)) == ()


@pytest.mark.parametrize("command", of_the_writer("b"), ids=name)
def test_the_actor_of_the_last_start_is_the_writer(command: Command) -> None:
    assert len(decide(command, folded(RUNS_AGAIN))) == 1


@pytest.mark.parametrize("events", [WAITS, WAITS_AGAIN])
def test_no_start_at_the_deadline_or_behind_it(events: list[EventData]) -> None:
    assert isinstance(decide(start(after_s=59.999), folded(events))[0], Started)
    for after_s in (60, 3600):
        [end] = decide(start(after_s=after_s), folded(events))
        assert end == Failed(message="Timed out: the job did not end within 60 s.", code="timeout")


@pytest.mark.parametrize("events", [WAITS, WAITS_AGAIN])
def test_a_job_that_waits_expires_at_the_deadline_and_not_before(events: list[EventData]) -> None:
    job = folded(events)
    assert decide(Expire(now=START + timedelta(seconds=59.999)), job) == ()
    for after_s in (60, 3600):
        [end] = decide(Expire(now=START + timedelta(seconds=after_s)), job)
        assert end == Failed(message="Timed out: the job did not end within 60 s.", code="timeout")


@pytest.mark.parametrize("events", [WAITS, WAITS_AGAIN])
def test_a_cancel_ends_a_job_that_waits(events: list[EventData]) -> None:
    assert decide(Cancel(), folded(events)) == (Cancelled(),)


@pytest.mark.parametrize("events", [RUNS, RUNS_AGAIN])
def test_a_cancel_of_a_job_that_runs_is_a_request(events: list[EventData]) -> None:
    assert decide(Cancel(), folded(events)) == (CancelRequested(),)


def test_a_cancel_is_requested_once() -> None:
    assert decide(Cancel(), folded(IS_LEAVING)) == ()


@pytest.mark.parametrize("late", [start(), start(after_s=90), start(max_attempts=1)])
def test_a_start_meets_a_cancel_first(late: Start) -> None:
    """The caller reads of the cancel, even where time or attempts have run out, too."""
    assert decide(late, folded(IS_LEAVING)) == (Cancelled(),)
    assert decide(late, folded([*IS_LEAVING, LOST])) == (Cancelled(),)


def test_the_writer_confirms_a_cancel() -> None:
    assert decide(ConfirmCancel(actor="a"), folded(IS_LEAVING)) == (Cancelled(),)


def test_an_image_that_was_made_before_the_cancel_was_seen_is_kept() -> None:
    assert decide(StoreImage(actor="a", image=image(0)), folded(IS_LEAVING)) == (image(0),)


LATE = timedelta(seconds=90)
MEETS_A_CANCEL: list[Command] = [
    Expire(now=START),
    Expire(now=START + LATE),
    fail_dispatch(attempts=1),
    fail_dispatch(attempts=1, max_failures=1),
    GiveUp("Submit it again."),
    FailAttempt(actor="a", message="The engine died.", final=False, blame=Blame.BYSTANDER),
    FailAttempt(actor="a", message="Timed out.", final=True),
    Complete(actor="a", images=2),
]


@pytest.mark.parametrize("command", MEETS_A_CANCEL, ids=name)
def test_a_job_of_which_was_said_that_it_is_cancelled_ends_so(command: Command) -> None:
    assert decide(command, folded(IS_LEAVING)) == (Cancelled(),)


@pytest.mark.parametrize("command", of_the_writer("b")[1:], ids=name)
def test_an_actor_that_is_not_the_writer_ends_no_cancelled_job(command: Command) -> None:
    assert decide(command, folded(IS_LEAVING)) == ()


def test_an_image_is_stored_once_per_index() -> None:
    job = folded([*RUNS, image(0), LOST, Started(attempt=2, actor="b")])
    again, other = image(0, attempt=2), image(1, attempt=2)
    assert decide(StoreImage(actor="b", image=again), job) == ()
    assert decide(StoreImage(actor="b", image=other), job) == (other,)


def test_a_failure_that_may_pass_ends_the_attempt_alone() -> None:
    command = FailAttempt(actor="b", message="Out of memory.", final=False)
    expected = AttemptFailed(attempt=2, message="Out of memory.")
    assert decide(command, folded(RUNS_AGAIN)) == (expected,)


def test_a_failure_that_would_repeat_ends_the_job() -> None:
    command = FailAttempt(actor="a", message="No such checkpoint.", final=True)
    assert decide(command, folded(RUNS)) == (Failed(message="No such checkpoint."),)


def test_completion() -> None:
    assert decide(Complete(actor="a", images=2), folded(RUNS)) == (Completed(images=2),)


ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START)


@pytest.mark.parametrize("before", [WAITS, RUNS, IS_LEAVING, WAITS_AGAIN])
def test_a_job_that_has_not_ended_is_cancelled_and_erased(before: list[EventData]) -> None:
    assert decide(Erase(), folded(before)) == (Cancelled(), ERASED)


@pytest.mark.parametrize("end", ENDS)
def test_a_job_that_has_ended_is_erased(end: EventData) -> None:
    assert decide(Erase(), folded([*RUNS, end])) == (ERASED,)


def test_nothing_is_added_to_an_erased_job() -> None:
    job = folded([*RUNS, Cancelled(), ERASED])
    commands = [Submit(SUBMITTED), Erase(), *ANYBODYS, *of_the_writer("a")]
    assert [decide(command, job) for command in commands] == [()] * len(commands)
    assert decide(Erase(), None) == ()


def test_a_dispatch_that_failed_is_counted() -> None:
    assert decide(fail_dispatch(), folded(WAITS)) == (
        DispatchFailed(failure=1, message="The actor died."),
    )
    once = folded([*WAITS, DispatchFailed(failure=1, message="No.")])
    assert decide(fail_dispatch(), once) == (DispatchFailed(failure=2, message="The actor died."),)


def test_dispatches_that_fail_run_out_and_make_a_dead_letter() -> None:
    failures = [DispatchFailed(failure=n, message="No.") for n in (1, 2)]
    [end] = decide(fail_dispatch(attempts=1), folded([*WAITS_AGAIN, *failures]))
    assert end == Failed(
        message="Gave up after it failed to be dispatched 3 times: The actor died. "
        "Submit it again; if that fails too, tell the operator its id.",
        dead_letter=DeadLetter.UNDISPATCHABLE,
        code="service_failed",
    )


def test_a_dispatch_after_which_an_attempt_began_has_not_failed() -> None:
    assert decide(fail_dispatch(attempts=0), folded(RUNS)) == ()
    assert decide(fail_dispatch(attempts=1), folded(RUNS_AGAIN)) == ()


@pytest.mark.parametrize("before", [WAITS, RUNS, IS_LEAVING, WAITS_AGAIN])
def test_an_administrator_ends_a_job_whoever_runs_it(before: list[EventData]) -> None:
    [end] = decide(Quarantine("It floods the disk."), folded(before))
    assert end == Failed(
        message="An administrator stopped this job: It floods the disk.",
        dead_letter=DeadLetter.QUARANTINED,
        code="quarantined",
    )


@pytest.mark.parametrize("before", [WAITS, RUNS, WAITS_AGAIN])
def test_a_job_that_cannot_be_handled_ends_whoever_runs_it(before: list[EventData]) -> None:
    [end] = decide(GiveUp("Submit it again."), folded(before))
    assert end == Failed(
        message="Submit it again.", dead_letter=DeadLetter.UNDISPATCHABLE, code="service_failed"
    )
