"""When a job is attempted, and when it is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from events.decisions import FailAttempt, Start, decide
from events.types import AttemptFailed, Blame, CancelRequested, EventData, Failed, Started
from tests.support.events import START, folded, submitted

SUBMITTED = submitted(images=2, deadline_s=60.0)
FIRST = Started(attempt=1, actor="a")
LOST = AttemptFailed(attempt=1, message="Out of memory.")
WAITS = [SUBMITTED]
RUNS = [SUBMITTED, FIRST]
WAITS_AGAIN = [*RUNS, LOST]
RUNS_AGAIN = [*WAITS_AGAIN, Started(attempt=2, actor="b")]


def start(actor: str = "z", *, max_attempts: int = 3) -> Start:
    now = START + timedelta(seconds=1)
    return Start(actor, max_attempts=max_attempts, max_attempts_total=9, now=now)


def test_the_first_start() -> None:
    assert decide(start("a"), folded(WAITS)) == (FIRST,)


def test_a_later_start_counts_on_and_names_the_new_writer() -> None:
    assert decide(start("b"), folded(WAITS_AGAIN)) == (Started(attempt=2, actor="b"),)


HISTORIES = [WAITS, RUNS, WAITS_AGAIN, RUNS_AGAIN, [*RUNS_AGAIN, CancelRequested()]]


@pytest.mark.parametrize("after_attempts", range(4))
@pytest.mark.parametrize("events", HISTORIES)
def test_a_start_of_a_job_that_somebody_else_has_since_adds_nothing(
    events: list[EventData], after_attempts: int
) -> None:
    job, anyhow = folded(events), start()
    late = replace(anyhow, now=START + timedelta(days=1))
    for command in (anyhow, late):
        added = decide(replace(command, after_attempts=after_attempts), job)
        assert added == (decide(command, job) if job.attempts == after_attempts else ())


def test_attempts_run_out() -> None:
    [end] = decide(start(max_attempts=2), folded([*RUNS_AGAIN, LOST]))
    assert end == Failed(message="Gave up after 2 attempts: Out of memory.", code="engine_failed")


@pytest.mark.parametrize(
    "events",
    [RUNS, [*RUNS, AttemptFailed(attempt=1, message="The engine died.", blame=Blame.SUSPECT)]],
    ids=["writer vanished", "suspected"],
)
def test_a_job_that_may_have_broken_its_engine_is_tried_again_with_no_other(
    events: list[EventData],
) -> None:
    again = Started(attempt=2, actor="b", exclusive=True)
    assert decide(start("b", max_attempts=1), folded(events)) == (again,)


def test_a_job_that_only_stood_by_is_tried_again_as_before() -> None:
    failed = AttemptFailed(attempt=1, message="The engine died.", blame=Blame.BYSTANDER)
    events = [*RUNS, failed]
    again = Started(attempt=2, actor="b")
    assert decide(start("b", max_attempts=1), folded(events)) == (again,)


def test_blame_stays_with_a_job_that_had_the_engine_for_itself() -> None:
    job = folded([*RUNS, Started(attempt=2, actor="a", exclusive=True)])
    suspect = FailAttempt("a", "It died.", final=False, blame=Blame.SUSPECT)
    assert decide(suspect, job) == (AttemptFailed(attempt=2, message="It died."),)
    # It waited for its turn, and those that it waited for took the engine down.
    bystander = FailAttempt("a", "It died.", final=False, blame=Blame.BYSTANDER)
    kept = AttemptFailed(attempt=2, message="It died.", blame=Blame.BYSTANDER)
    assert decide(bystander, job) == (kept,)


def test_attempts_of_a_job_that_breaks_its_engine_run_out() -> None:
    alone = [
        event
        for attempt in (2, 3, 4)
        for event in (
            Started(attempt=attempt, actor="a", exclusive=True),
            AttemptFailed(attempt=attempt, message="The engine died."),
        )
    ]
    assert isinstance(decide(start(), folded([*RUNS, *alone[:4]]))[0], Started)
    [end] = decide(start(), folded([*RUNS, *alone]))
    text = "Gave up after 4 attempts, 3 of them with no other job on the engine: The engine died."
    assert end == Failed(message=text, code="engine_failed")


def test_attempts_that_ended_without_a_word_are_not_charged() -> None:
    """Nobody saw how: the machine was restarted, say, time after time."""
    alone = [Started(attempt=attempt, actor="a", exclusive=True) for attempt in range(2, 6)]
    again = Started(attempt=6, actor="b", exclusive=True)
    assert decide(start("b", max_attempts=1), folded([*RUNS, *alone])) == (again,)


def failed_attempts(count: int, **how: Any) -> list[EventData]:
    pairs = (
        (Started(attempt=n, actor="a"), AttemptFailed(attempt=n, message="It died.", **how))
        for n in range(1, count + 1)
    )
    return [event for pair in pairs for event in pair]


def test_attempts_that_are_not_charged_run_out_in_the_end() -> None:
    def events(count: int) -> list[EventData]:
        return [SUBMITTED, *failed_attempts(count, blame=Blame.SUSPECT)]

    assert isinstance(decide(start(), folded(events(8)))[0], Started)
    [end] = decide(start(), folded(events(9)))
    assert end == Failed(message="Gave up after 9 attempts: It died.", code="engine_failed")


def test_attempts_that_a_job_was_spared_do_not_run_out() -> None:
    events = [SUBMITTED, *failed_attempts(50, blame=Blame.BYSTANDER)]
    assert decide(start("b"), folded(events)) == (Started(attempt=51, actor="b"),)


def test_an_attempt_fails_once() -> None:
    """Its actor said so and died, and then whoever saw that says it in its name."""
    late = FailAttempt("a", "Its process ended.", final=False, blame=Blame.SUSPECT)
    assert decide(late, folded(WAITS_AGAIN)) == ()


def test_a_job_that_others_have_joined_is_not_charged() -> None:
    job = folded([*RUNS, Started(attempt=2, actor="a", exclusive=True)])
    joined = FailAttempt("a", "It died.", final=False, blame=Blame.SUSPECT, is_joined=True)
    kept = AttemptFailed(attempt=2, message="It died.", blame=Blame.SUSPECT)
    assert decide(joined, job) == (kept,)
