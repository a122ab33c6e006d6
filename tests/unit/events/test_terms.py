"""What an endpoint asked of a job when it was accepted, whatever it asks by now."""

from __future__ import annotations

from datetime import timedelta

import pytest

from events.decisions import Dismiss, Expire, Start, decide
from events.types import AttemptFailed, DeadLetter, EventData, Failed, Started, Terms
from tests.support.events import START, folded, submitted

TERMS = Terms(max_pixels=1, max_steps=1, max_cost=1.0)
FIRST = Started(attempt=1, actor="a")
LOST = AttemptFailed(attempt=1, message="Out of memory.")


def with_terms(*events: EventData, **terms: float) -> list[EventData]:
    return [submitted(deadline_s=60.0, terms=TERMS.model_copy(update=terms)), *events]


def start(*, max_attempts: int = 3, after_s: float = 1) -> Start:
    now = START + timedelta(seconds=after_s)
    return Start("z", max_attempts=max_attempts, max_attempts_total=9, now=now)


class TestQueueTimeout:
    @pytest.mark.parametrize("queue_timeout_s", [10.0, None, 90.0])
    def test_a_job_that_no_attempt_began_at_fails_once_it_is_over(
        self, queue_timeout_s: float | None
    ) -> None:
        job = folded(with_terms(queue_timeout_s=queue_timeout_s))
        due_s = min(queue_timeout_s or 60.0, 60.0)
        assert job.due_at == START + timedelta(seconds=due_s)
        assert decide(Expire(START + timedelta(seconds=due_s - 0.001)), job) == ()
        [end] = decide(Expire(START + timedelta(seconds=due_s)), job)
        assert isinstance(end, Failed)
        assert f"did not {'start' if due_s == 10 else 'end'} within {due_s:g} s" in end.message
        assert decide(start(after_s=due_s), job) == (Failed(message=end.message, code="timeout"),)

    def test_it_does_not_hold_once_an_attempt_began(self) -> None:
        job = folded(with_terms(FIRST, LOST, queue_timeout_s=10.0))
        assert job.due_at == job.deadline
        assert decide(Expire(START + timedelta(seconds=59)), job) == ()
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


def test_who_is_dismissed_fails_as_a_dead_letter_unless_an_attempt_runs() -> None:
    dead_letter = DeadLetter.UNDISPATCHABLE
    gone = Failed(message="It is gone.", dead_letter=dead_letter, code="endpoint_removed")
    for events in (with_terms(), with_terms(FIRST, LOST)):
        assert decide(Dismiss("It is gone."), folded(events)) == (gone,)
    assert decide(Dismiss("It is gone."), folded(with_terms(FIRST))) == ()
    assert decide(Dismiss("It is gone."), folded([*with_terms(FIRST), gone])) == ()
