"""Each invariant finds the history that was made to break it, and says nothing of a good one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from events.job import fold
from events.types import (
    AttemptFailed,
    Blame,
    CallbackAttempted,
    CallbackDelivered,
    Cancelled,
    Completed,
    Erased,
    Event,
    EventData,
    Failed,
    Flavour,
    Started,
)
from events.wire.cloud_events import encode
from tests.faults.checker.history import (
    Answer,
    Call,
    Fault,
    Folded,
    History,
    Stored,
    Submission,
    job_as_json,
    marker_of,
)
from tests.faults.checker.invariants import violations
from tests.support.events import image, submitted

JOB = "0199aaaa-0000-7000-8000-000000000001"
OTHER = "0199aaaa-0000-7000-8000-000000000002"
MARKER = marker_of(1)
START = datetime(2026, 3, 1, 8, 30, tzinfo=UTC)
BEGAN = START.timestamp()
SUBMITTED = submitted(request={"prompt": f"{MARKER} a circle"})
CALLED_BACK = submitted(request={"prompt": MARKER}, callback_url="http://127.0.0.1:1/")
STARTED = Started(attempt=1, actor="a")
ALONE = Started(attempt=1, actor="a", exclusive=True)
DONE = Completed(images=1)
GOOD = (SUBMITTED, STARTED, image(0), DONE)
TRIED = (CallbackAttempted(attempt=1, status=200, latency_s=0.1), CallbackDelivered(attempt=1))
CALL = Call(BEGAN, JOB, "msg_1", is_signed=True, answered=200)
FAILED = AttemptFailed(attempt=1, message="the engine died")
SPARED = AttemptFailed(attempt=1, message="the engine died", blame=Blame.SUSPECT)


def events_of(data: Iterable[EventData], job_id: str = JOB, *, first: int = 1) -> list[Event]:
    """A second apart."""
    return [
        Event(
            id=f"{job_id}-{version}",
            job_id=job_id,
            version=version,
            time=START + timedelta(seconds=version),
            data=each,
            position=version,
        )
        for version, each in enumerate(data, first)
    ]


def stored(events: Iterable[Event]) -> list[Stored]:
    return [(event.position, encode(event).decode()) for event in events]


def history(*data: EventData, deliveries: Iterable[EventData] = ()) -> History:
    """One submission, answered with 202, and what became of it."""
    made = History()
    accepted = Answer(BEGAN, 202, job_id=JOB)
    made.submissions[MARKER] = Submission(MARKER, "alice", answers=[accepted])
    with_job(made, events_of(data))
    if deliveries:
        made.deliveries[JOB] = stored(events_of(deliveries))
    return made


def with_job(made: History, events: list[Event]) -> History:
    job_id = events[0].job_id
    made.jobs[job_id] = stored(events)
    job = fold(Folded(made).events[job_id])
    if job is not None:
        made.rows[job_id] = job_as_json(job)
    return made


def broken(made: History) -> set[str]:
    """The numbers of the invariants that do not hold."""
    return {name.split()[0] for name, found in violations(Folded(made)).items() if found}


def test_a_good_history_breaks_nothing() -> None:
    made = history(CALLED_BACK, STARTED, image(0), DONE, deliveries=TRIED)
    made.calls = [CALL]
    made.results[JOB] = 200, 1
    assert broken(made) == set()


def test_a_history_is_the_same_after_a_file(tmp_path: Path) -> None:
    made = history(CALLED_BACK, STARTED, FAILED, DONE, deliveries=TRIED)
    made.calls, made.faults = [CALL], [Fault("engine_kill", BEGAN, None)]
    made.results[JOB] = 200, 1
    made.save(tmp_path / "history.json")
    assert History.load(tmp_path / "history.json") == made


def lost() -> History:
    made = history(*GOOD)
    made.jobs.clear()
    made.rows.clear()
    return made


def twice() -> History:
    """Two jobs of one request."""
    return with_job(history(*GOOD), events_of(GOOD, OTHER))


def wrong_result() -> History:
    made = history(*GOOD)
    made.results[JOB] = 404, None
    return made


def unknown_meanwhile() -> History:
    made = history(*GOOD)
    made.not_found = [JOB]
    return made


@pytest.mark.parametrize(
    "made",
    [
        lost(),
        unknown_meanwhile(),
        twice(),
        wrong_result(),
        history(SUBMITTED, STARTED),
        history(*GOOD, Cancelled()),
        history(SUBMITTED, STARTED, DONE, image(0)),
        history(SUBMITTED, STARTED, image(0), image(0), DONE),
    ],
    ids=["lost", "unknown", "twice", "result", "open", "two ends", "after its end", "image twice"],
)
def test_a_202_that_does_not_end_once_breaks_i1(made: History) -> None:
    assert broken(made) == {"I1"}


def without_version(missing: int) -> History:
    made = history(*GOOD)
    made.jobs[JOB] = stored(event for event in events_of(GOOD) if event.version != missing)
    made.rows[JOB] = job_as_json(fold(Folded(made).events[JOB]))
    return made


def same_event_twice() -> History:
    made = History()
    first, second, *rest = events_of(GOOD)
    again = replace(rest[0], id=second.id)
    return with_job(made, [first, second, again, *rest[1:]])


@pytest.mark.parametrize("made", [without_version(2), same_event_twice()], ids=["gap", "twice"])
def test_a_gap_in_the_versions_breaks_i2(made: History) -> None:
    assert broken(made) == {"I2"}


def row_differs() -> History:
    made = history(*GOOD)
    made.rows[JOB]["attempts"] = 2
    return made


def row_missing() -> History:
    made = history(*GOOD)
    made.rows.clear()
    return made


def half_erased() -> History:
    made = history(*GOOD)
    made.erased = [JOB]
    return made


@pytest.mark.parametrize(
    "made", [row_differs(), row_missing(), half_erased()], ids=["differs", "missing", "erased"]
)
def test_a_row_that_is_not_the_fold_breaks_i3(made: History) -> None:
    assert broken(made) == {"I3"}


def test_an_erased_job_has_one_event_of_any_version() -> None:
    erased = Erased(
        flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START
    )
    made = history(*GOOD)
    with_job(made, events_of([erased], first=5))
    made.erased, made.results[JOB] = [JOB], (404, None)
    assert broken(made) == set()


def called(*calls: Call, data: tuple[EventData, ...] = (CALLED_BACK, STARTED, DONE)) -> History:
    made = history(*data, deliveries=TRIED)
    made.calls = list(calls)
    return made


def open_delivery() -> History:
    made = called(replace(CALL, answered=500))
    made.deliveries[JOB] = made.deliveries[JOB][:1]
    return made


@pytest.mark.parametrize(
    "made",
    [
        open_delivery(),
        called(),
        called(CALL, replace(CALL, webhook_id="msg_2")),
        called(replace(CALL, is_signed=False)),
        called(CALL, data=(SUBMITTED, STARTED, DONE)),
    ],
    ids=["open", "not received", "two ids", "unsigned", "not asked for"],
)
def test_a_callback_that_does_not_end_under_one_id_breaks_i4(made: History) -> None:
    assert broken(made) == {"I4"}


def test_a_dial_to_a_forbidden_address_breaks_i5() -> None:
    made = history(*GOOD)
    made.forbidden_dials = ["127.0.0.66:80"]
    assert broken(made) == {"I5"}


@pytest.mark.parametrize(
    ("status", "error", "is_broken"),
    [
        (400, "invalid_request", True),
        (503, "unavailable", True),
        (503, None, True),
        (503, "outcome_unknown", False),
        (502, None, False),
        (None, None, False),
    ],
)
def test_only_what_surely_was_refused_may_have_no_job(
    status: int | None, error: str | None, is_broken: bool
) -> None:
    made = history(*GOOD)
    made.submissions[MARKER].answers = [Answer(BEGAN, status, error)]
    assert broken(made) == ({"I6"} if is_broken else set())


def failed(*data: EventData, guilty: bool = False, faults: Iterable[Fault] = ()) -> History:
    made = history(SUBMITTED, *data)
    made.submissions[MARKER].is_guilty = guilty
    made.faults = list(faults)
    return made


KILLED_THEN = Fault("engine_kill", BEGAN + 2.5, None)
"""While the attempt ran."""


def test_an_attempt_that_is_charged_for_anothers_fault_breaks_i7() -> None:
    assert broken(failed(STARTED, FAILED, DONE)) == {"I7"}
    assert broken(failed(STARTED, FAILED, DONE, faults=[KILLED_THEN])) == {"I7"}
    assert broken(failed(STARTED, Failed(message="Gave up"))) == {"I7"}


def test_what_is_spared_guilty_or_was_alone_when_its_engine_was_killed_may_be_charged() -> None:
    assert broken(failed(STARTED, SPARED, DONE)) == set()
    assert broken(failed(STARTED, FAILED, DONE, guilty=True)) == set()
    assert broken(failed(ALONE, FAILED, DONE, faults=[KILLED_THEN])) == set()
    assert broken(failed(ALONE, FAILED, DONE)) == {"I7"}


def test_a_job_may_fail_for_want_of_memory_while_a_fault_takes_it() -> None:
    end = Failed(message="out of memory")
    assert broken(failed(STARTED, end)) == {"I7"}
    fault = Fault("engine_memory", BEGAN + 1, BEGAN + 4)
    assert broken(failed(STARTED, end, faults=[fault])) == set()


def test_what_is_left_breaks_i8_and_a_disagreement_is_told() -> None:
    made = history(*GOOD)
    made.leftovers, made.disagreements = ["a process"], ["a row"]
    assert broken(made) == {"I8", "darkroom"}
