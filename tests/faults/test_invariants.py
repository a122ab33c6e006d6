"""Each invariant finds the history that was made to break it, and says nothing of a good one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from events.cloud_events import encode
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
from tests.faults.checker.history import (
    Answer,
    Call,
    Fault,
    Folded,
    History,
    Submission,
    job_as_json,
    marker_of,
)
from tests.faults.checker.invariants import violations
from tests.support.events import JOB_ID as JOB
from tests.support.events import START, image, submitted

OTHER = "0199aaaa-0000-7000-8000-000000000002"
MARKER = marker_of(1)
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
NO_MEMORY = Failed(message="out of memory")
ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START)
KILLED_THEN = Fault("engine_kill", BEGAN + 2.5, None)
"""While the attempt ran."""


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


def history(
    *data: EventData,
    deliveries: Iterable[EventData] = (),
    answers: Iterable[Answer] = (Answer(BEGAN, 202, job_id=JOB),),
    guilty: bool = False,
    **members: Any,
) -> History:
    """One submission, answered with 202, and what became of it."""
    made = History(**members)
    made.submissions[MARKER] = Submission(MARKER, "alice", is_guilty=guilty, answers=list(answers))
    with_job(made, events_of(data or GOOD))
    if deliveries:
        with_events(made.deliveries, events_of(deliveries))
    return made


def with_events(place: dict[str, Any], events: list[Event]) -> None:
    place[events[0].job_id] = [(event.position, encode(event).decode()) for event in events]


def with_job(made: History, events: list[Event]) -> History:
    with_events(made.jobs, events)
    job_id = events[0].job_id
    if (job := fold(Folded(made).events[job_id])) is not None:
        made.rows[job_id] = job_as_json(job)
    return made


def without(*places: str) -> History:
    made = history()
    for place in places:
        getattr(made, place).clear()
    return made


def same_event_twice() -> list[Event]:
    first, second, third, last = events_of(GOOD)
    return [first, second, replace(third, id=second.id), last]


def called(*calls: Call, asked: EventData = CALLED_BACK, tried: Any = TRIED) -> History:
    return history(asked, STARTED, DONE, deliveries=tried, calls=list(calls))


def row_differs() -> History:
    made = history()
    made.rows[JOB]["attempts"] = 2
    return made


def answered(status: int | None, error: str | None = None) -> History:
    return history(answers=[Answer(BEGAN, status, error)])


MADE: dict[str, tuple[str, History]] = {
    "good": ("", called(CALL)),
    "lost": ("I1", without("jobs", "rows")),
    "unknown meanwhile": ("I1", history(not_found=[JOB])),
    "two jobs of one request": ("I1", with_job(history(), events_of(GOOD, OTHER))),
    "another result": ("I1", history(results={JOB: (404, None)})),
    "open": ("I1", history(SUBMITTED, STARTED)),
    "two ends": ("I1", history(*GOOD, Cancelled())),
    "an image after the end": ("I1", history(SUBMITTED, STARTED, DONE, image(0))),
    "an image twice": ("I1", history(SUBMITTED, STARTED, image(0), image(0), DONE)),
    "a gap": ("I2", with_job(history(), [e for e in events_of(GOOD) if e.version != 2])),
    "an event twice": ("I2", with_job(history(), same_event_twice())),
    "a row that differs": ("I3", row_differs()),
    "no row": ("I3", without("rows")),
    "half erased": ("I3", history(erased=[JOB])),
    "erased": (
        "",
        with_job(history(erased=[JOB], results={JOB: (404, None)}), events_of([ERASED], first=5)),
    ),
    "an open delivery": ("I4", called(replace(CALL, answered=500), tried=TRIED[:1])),
    "not received": ("I4", called()),
    "called under two ids": ("I4", called(CALL, replace(CALL, webhook_id="msg_2"))),
    "unsigned": ("I4", called(replace(CALL, is_signed=False))),
    "called and not asked for": ("I4", called(CALL, asked=SUBMITTED)),
    "a forbidden dial": ("I5", history(forbidden_dials=["127.0.0.66:80"])),
    "refused as invalid": ("I6", answered(400, "invalid_request")),
    "refused as unavailable": ("I6", answered(503, "unavailable")),
    "refused by a proxy": ("I6", answered(503)),
    "an unknown outcome": ("", answered(503, "outcome_unknown")),
    "a gateway's error": ("", answered(502)),
    "no answer": ("", answered(None)),
    "charged": ("I7", history(SUBMITTED, STARTED, FAILED, DONE)),
    "charged for a fault": ("I7", history(SUBMITTED, STARTED, FAILED, DONE, faults=[KILLED_THEN])),
    "given up": ("I7", history(SUBMITTED, STARTED, Failed(message="Gave up"))),
    "charged alone without a fault": ("I7", history(SUBMITTED, ALONE, FAILED, DONE)),
    "spared": ("", history(SUBMITTED, STARTED, SPARED, DONE)),
    "guilty": ("", history(SUBMITTED, STARTED, FAILED, DONE, guilty=True)),
    "alone at a fault": ("", history(SUBMITTED, ALONE, FAILED, DONE, faults=[KILLED_THEN])),
    "no memory": ("I7", history(SUBMITTED, STARTED, NO_MEMORY)),
    "no memory at a fault": (
        "",
        history(
            SUBMITTED,
            STARTED,
            NO_MEMORY,
            faults=[Fault("engine_memory", BEGAN + 1, BEGAN + 4)],
        ),
    ),
    "a process is left": ("I8", history(leftovers=["a process"])),
    "a disagreement": ("darkroom", history(disagreements=["a row"])),
}
"""The number of the invariant that does not hold, and the history."""


@pytest.mark.parametrize("name", MADE)
def test_a_history_breaks_the_invariant_that_it_was_made_to_break(name: str) -> None:
    broken, made = MADE[name]
    found = violations(Folded(made))
    assert [each.split()[0] for each, wrong in found.items() if wrong] == broken.split()
