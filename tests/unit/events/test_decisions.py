"""The events that each command appends, in each state of a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

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
    FailForRemovedEndpoint,
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
    Terms,
)
from tests.support.events import START, folded, image, submitted

SUBMITTED = submitted(images=2, deadline_s=60.0)
FIRST = Started(attempt=1, actor="a")
LOST = AttemptFailed(attempt=1, message="Out of memory.")
ENDS: list[EventData] = [Completed(images=2), Failed(message="No."), Cancelled()]
ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START)

WAITS = [SUBMITTED]
RUNS = [SUBMITTED, FIRST]
IS_LEAVING = [*RUNS, CancelRequested()]
WAITS_AGAIN = [*RUNS, LOST]
RUNS_AGAIN = [*WAITS_AGAIN, Started(attempt=2, actor="b")]
STATES = {
    "waits": WAITS,
    "runs": RUNS,
    "is leaving": IS_LEAVING,
    "waits again": WAITS_AGAIN,
    "runs again": RUNS_AGAIN,
}


def in_states(*names: str) -> pytest.MarkDecorator:
    """Run a test with the events of each of these states."""
    return pytest.mark.parametrize("events", [STATES[name] for name in names], ids=names)


def start(actor: str = "z", *, max_attempts: int = 3, after_s: float = 1) -> Start:
    now = START + timedelta(seconds=after_s)
    return Start(actor, max_attempts=max_attempts, max_attempts_total=9, now=now)


def expire(after_s: float) -> Expire:
    return Expire(now=START + timedelta(seconds=after_s))


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


def name(value: object) -> str:
    return type(value).__name__


ANYBODYS: list[Command] = [start(), Cancel(), Quarantine("No."), GiveUp("No."), fail_dispatch()]
"""Commands that need no writer."""


# Who may write, and how long.


def test_a_submission_makes_a_job() -> None:
    assert decide(Submit(SUBMITTED), None) == (SUBMITTED,)


@pytest.mark.parametrize("events", [WAITS, RUNS, [*RUNS, Completed(images=2)], [*RUNS, ERASED]])
def test_a_job_is_submitted_once(events: list[EventData]) -> None:
    assert decide(Submit(SUBMITTED), folded(events)) == ()


@pytest.mark.parametrize("command", [*ANYBODYS, Erase(), *of_the_writer("a")], ids=name)
def test_an_unknown_job_stays_unknown(command: Command) -> None:
    assert decide(command, None) == ()


@pytest.mark.parametrize("command", [*ANYBODYS, *of_the_writer("a")], ids=name)
@pytest.mark.parametrize("end", [*ENDS, ERASED], ids=name)
def test_nothing_is_added_behind_an_end(command: Command, end: EventData) -> None:
    assert decide(command, folded([*RUNS, end])) == ()


@pytest.mark.parametrize(
    ("state", "actor"), [("waits", "a"), ("runs again", "a"), ("is leaving", "b")]
)
def test_an_actor_that_is_not_the_writer_adds_nothing(state: str, actor: str) -> None:
    for command in of_the_writer(actor):
        assert decide(command, folded(STATES[state])) == (), command


def test_an_image_is_stored_once_per_index() -> None:
    job = folded([*RUNS, image(0), LOST, Started(attempt=2, actor="b")])
    again, other = image(0, attempt=2), image(1, attempt=2)
    assert decide(StoreImage(actor="b", image=again), job) == ()
    assert decide(StoreImage(actor="b", image=other), job) == (other,)


@pytest.mark.parametrize(
    ("command", "event"),
    [
        (
            FailAttempt(actor="b", message="Out of memory.", final=False),
            AttemptFailed(attempt=2, message="Out of memory."),
        ),
        (
            FailAttempt(actor="b", message="No room.", final=True, code="out_of_memory"),
            Failed(message="No room.", code="out_of_memory"),
        ),
        (Complete(actor="b", images=2), Completed(images=2)),
        (ConfirmCancel(actor="b"), Cancelled()),
    ],
    ids=["may pass", "would repeat", "completed", "cancelled"],
)
def test_the_actor_of_the_last_start_ends_its_attempt(command: Command, event: EventData) -> None:
    assert decide(command, folded(RUNS_AGAIN)) == (event,)


# Cancelling and erasing.


@pytest.mark.parametrize(
    ("state", "event"),
    [
        ("waits", Cancelled()),
        ("waits again", Cancelled()),
        ("runs", CancelRequested()),
        ("runs again", CancelRequested()),
        ("is leaving", None),
    ],
)
def test_a_cancel_ends_a_job_that_waits_and_is_a_request_once_to_one_that_runs(
    state: str, event: EventData | None
) -> None:
    assert decide(Cancel(), folded(STATES[state])) == (() if event is None else (event,))


@pytest.mark.parametrize("late", [start(), start(after_s=90), start(max_attempts=1)])
def test_a_start_meets_a_cancel_first(late: Start) -> None:
    """The caller reads of the cancel, even where time or attempts have run out, too."""
    assert decide(late, folded(IS_LEAVING)) == (Cancelled(),)
    assert decide(late, folded([*IS_LEAVING, LOST])) == (Cancelled(),)


def test_an_image_that_was_made_before_the_cancel_was_seen_is_kept() -> None:
    assert decide(StoreImage(actor="a", image=image(0)), folded(IS_LEAVING)) == (image(0),)


MEETS_A_CANCEL: list[Command] = [
    ConfirmCancel(actor="a"),
    expire(0),
    expire(90),
    fail_dispatch(attempts=1),
    fail_dispatch(attempts=1, max_failures=1),
    GiveUp("Submit the job again."),
    FailAttempt(actor="a", message="The engine died.", final=False, blame=Blame.BYSTANDER),
    FailAttempt(actor="a", message="Timed out.", final=True),
    Complete(actor="a", images=2),
]


@pytest.mark.parametrize("command", MEETS_A_CANCEL, ids=name)
def test_a_job_of_which_was_said_that_it_is_cancelled_ends_so(command: Command) -> None:
    assert decide(command, folded(IS_LEAVING)) == (Cancelled(),)


@in_states("waits", "runs", "is leaving", "waits again")
def test_a_job_that_has_not_ended_is_cancelled_and_erased(events: list[EventData]) -> None:
    assert decide(Erase(), folded(events)) == (Cancelled(), ERASED)


@pytest.mark.parametrize("end", ENDS, ids=name)
def test_a_job_that_has_ended_is_erased_once(end: EventData) -> None:
    assert decide(Erase(), folded([*RUNS, end])) == (ERASED,)
    assert decide(Erase(), folded([*RUNS, end, ERASED])) == ()


# Deadlines, and what an endpoint asked of a job when it was accepted.


@pytest.mark.parametrize("after_s", [60, 3600])
@in_states("waits", "waits again")
def test_a_job_starts_until_its_deadline_and_expires_from_then_on(
    events: list[EventData], after_s: float
) -> None:
    job = folded(events)
    late = Failed(message="Timed out: the job did not end within 60 s.", code="timeout")
    assert decide(expire(59.999), job) == ()
    assert isinstance(decide(start(after_s=59.999), job)[0], Started)
    assert decide(expire(after_s), job) == (late,)
    assert decide(start(after_s=after_s), job) == (late,)


TERMS = Terms(max_pixels=1, max_steps=1, max_cost=1.0)


def with_terms(*events: EventData, **terms: Any) -> list[EventData]:
    return [submitted(deadline_s=60.0, terms=TERMS.model_copy(update=terms)), *events]


@pytest.mark.parametrize("queue_timeout_s", [10.0, None, 90.0])
def test_a_job_that_no_attempt_began_at_fails_once_its_time_in_the_queue_is_over(
    queue_timeout_s: float | None,
) -> None:
    job = folded(with_terms(queue_timeout_s=queue_timeout_s))
    due_s = min(queue_timeout_s or 60.0, 60.0)
    assert job.due_at == START + timedelta(seconds=due_s)
    assert decide(expire(due_s - 0.001), job) == ()
    [end] = decide(expire(due_s), job)
    assert isinstance(end, Failed)
    assert f"did not {'start' if due_s == 10 else 'end'} within {due_s:g} s" in end.message
    assert decide(start(after_s=due_s), job) == (Failed(message=end.message, code="timeout"),)


def test_the_time_in_the_queue_does_not_hold_once_an_attempt_began() -> None:
    job = folded(with_terms(FIRST, LOST, queue_timeout_s=10.0))
    assert job.due_at == job.deadline
    assert decide(expire(59), job) == ()
    [began] = decide(start(after_s=59), job)
    assert isinstance(began, Started)


@pytest.mark.parametrize(
    ("own", "worker", "is_last"), [(1, 3, True), (2, 1, False), (None, 1, True)]
)
def test_the_attempts_of_the_endpoint_count_and_else_those_of_the_worker(
    own: int | None, worker: int, is_last: bool
) -> None:
    job = folded(with_terms(FIRST, LOST, max_attempts=own))
    [event] = decide(start(max_attempts=worker), job)
    assert isinstance(event, Failed) is is_last


GONE = Failed(message="It is gone.", dead_letter=DeadLetter.UNDISPATCHABLE, code="endpoint_removed")


@pytest.mark.parametrize(
    ("events", "added"),
    [(WAITS, (GONE,)), (WAITS_AGAIN, (GONE,)), (RUNS, ()), ([*RUNS, GONE], ())],
    ids=["waits", "waits again", "runs", "ended"],
)
def test_a_job_of_a_removed_endpoint_fails_unless_an_attempt_runs(
    events: list[EventData], added: tuple[EventData, ...]
) -> None:
    assert decide(FailForRemovedEndpoint("It is gone."), folded(events)) == added


# Ends that the service makes.


def test_a_dispatch_that_failed_is_counted() -> None:
    once = DispatchFailed(failure=1, message="The actor died.")
    assert decide(fail_dispatch(), folded(WAITS)) == (once,)
    twice = DispatchFailed(failure=2, message="The actor died.")
    assert decide(fail_dispatch(), folded([*WAITS, once])) == (twice,)


def test_dispatches_that_fail_run_out_and_make_a_dead_letter() -> None:
    failures = [DispatchFailed(failure=n, message="No.") for n in (1, 2)]
    [end] = decide(fail_dispatch(attempts=1), folded([*WAITS_AGAIN, *failures]))
    assert end == Failed(
        message="Gave up after the job could not be dispatched 3 times: The actor died. Submit the "
        "job again. If it fails again, report the id of the job to the operator.",
        dead_letter=DeadLetter.UNDISPATCHABLE,
        code="service_failed",
    )


def test_a_dispatch_after_which_an_attempt_began_has_not_failed() -> None:
    assert decide(fail_dispatch(attempts=0), folded(RUNS)) == ()
    assert decide(fail_dispatch(attempts=1), folded(RUNS_AGAIN)) == ()


QUARANTINED = Failed(
    message="An administrator stopped this job: It floods the disk.",
    dead_letter=DeadLetter.QUARANTINED,
    code="quarantined",
)
GIVEN_UP = Failed(
    message="Submit the job again.", dead_letter=DeadLetter.UNDISPATCHABLE, code="service_failed"
)


@pytest.mark.parametrize("state", ["waits", "runs", "is leaving", "waits again"])
def test_an_administrator_or_a_job_that_cannot_be_handled_ends_whoever_runs_it(state: str) -> None:
    job = folded(STATES[state])
    assert decide(Quarantine("It floods the disk."), job) == (QUARANTINED,)
    given_up = Cancelled() if state == "is leaving" else GIVEN_UP
    assert decide(GiveUp("Submit the job again."), job) == (given_up,)


# Attempts, and which of them are charged.


def test_a_start_counts_on_and_names_the_new_writer() -> None:
    assert decide(start("a"), folded(WAITS)) == (FIRST,)
    assert decide(start("b"), folded(WAITS_AGAIN)) == (Started(attempt=2, actor="b"),)


@pytest.mark.parametrize("after_attempts", range(4))
@in_states(*STATES)
def test_a_start_of_a_job_that_somebody_else_has_since_adds_nothing(
    events: list[EventData], after_attempts: int
) -> None:
    job = folded(events)
    for command in (start(), start(after_s=86_400)):
        added = decide(replace(command, after_attempts=after_attempts), job)
        assert added == (decide(command, job) if job.attempts == after_attempts else ())


def test_attempts_run_out() -> None:
    [end] = decide(start(max_attempts=2), folded([*RUNS_AGAIN, LOST]))
    assert end == Failed(message="Gave up after 2 attempts: Out of memory.", code="engine_failed")


def died(blame: Blame | None = None, *, attempt: int = 1) -> AttemptFailed:
    return AttemptFailed(attempt=attempt, message="It died.", blame=blame)


def failed_attempts(
    attempts: range, blame: Blame | None, *, exclusive: Literal[True] | None = None
) -> list[EventData]:
    events: list[EventData] = []
    for attempt in attempts:
        started = Started(attempt=attempt, actor="a", exclusive=exclusive)
        events += [started, died(blame, attempt=attempt)]
    return events


@pytest.mark.parametrize(
    ("events", "exclusive"),
    [(RUNS, True), ([*RUNS, died(Blame.SUSPECT)], True), ([*RUNS, died(Blame.BYSTANDER)], None)],
    ids=["writer vanished", "suspected", "stood by"],
)
def test_a_job_that_may_have_broken_its_engine_is_tried_again_with_no_other(
    events: list[EventData], exclusive: bool | None
) -> None:
    again = Started(attempt=2, actor="b", exclusive=exclusive)
    assert decide(start("b", max_attempts=1), folded(events)) == (again,)


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({"blame": Blame.SUSPECT}, None),
        # It waited for its turn, and those that it waited for took the engine down.
        ({"blame": Blame.BYSTANDER}, Blame.BYSTANDER),
        ({"blame": Blame.SUSPECT, "is_joined": True}, Blame.SUSPECT),
    ],
    ids=["suspect", "bystander", "joined"],
)
def test_blame_stays_with_a_job_that_had_the_engine_for_itself(
    how: dict[str, Any], kept: Blame | None
) -> None:
    job = folded([*RUNS, Started(attempt=2, actor="a", exclusive=True)])
    command = FailAttempt("a", "It died.", final=False, **how)
    assert decide(command, job) == (died(kept, attempt=2),)


def test_attempts_of_a_job_that_breaks_its_engine_run_out() -> None:
    alone = failed_attempts(range(2, 5), None, exclusive=True)
    assert isinstance(decide(start(), folded([*RUNS, *alone[:4]]))[0], Started)
    [end] = decide(start(), folded([*RUNS, *alone]))
    text = "Gave up after 4 attempts, 3 of them with no other job on the engine: It died."
    assert end == Failed(message=text, code="engine_failed")


def test_attempts_that_ended_without_a_word_are_not_charged() -> None:
    """Nobody saw how: the machine was restarted, say, time after time."""
    alone = [Started(attempt=attempt, actor="a", exclusive=True) for attempt in range(2, 6)]
    again = Started(attempt=6, actor="b", exclusive=True)
    assert decide(start("b", max_attempts=1), folded([*RUNS, *alone])) == (again,)


def test_attempts_that_are_not_charged_run_out_in_the_end() -> None:
    events = [SUBMITTED, *failed_attempts(range(1, 10), Blame.SUSPECT)]
    assert isinstance(decide(start(), folded(events[:-2]))[0], Started)
    [end] = decide(start(), folded(events))
    assert end == Failed(message="Gave up after 9 attempts: It died.", code="engine_failed")


def test_attempts_that_a_job_was_spared_do_not_run_out() -> None:
    events = [SUBMITTED, *failed_attempts(range(1, 51), Blame.BYSTANDER)]
    assert decide(start("b"), folded(events)) == (Started(attempt=51, actor="b"),)


def test_an_attempt_fails_once() -> None:
    """The actor recorded the failure and died; another process records it again in its name."""
    late = FailAttempt("a", "Its process ended.", final=False, blame=Blame.SUSPECT)
    assert decide(late, folded(WAITS_AGAIN)) == ()
