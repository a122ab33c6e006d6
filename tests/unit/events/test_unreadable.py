"""Events that this version cannot read: who folds a job stops there, and shows what it knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from events.errors import JobDamaged, JobOfLaterVersion, JobUnreadable
from events.job import fold, fold_for_erasure, fold_readable
from events.types import (
    Broken,
    Completed,
    Erased,
    Event,
    EventData,
    Flavour,
    Started,
    Unknown,
    Unreadable,
)
from tests.support.events import START, folded, history_of, submitted

UNKNOWN = Unknown(original_type="darkroom.job.paused.v1")
BROKEN = Broken(why="cut off")
ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START)
unreadable = pytest.mark.parametrize("data", [UNKNOWN, BROKEN], ids=["unknown", "broken"])


def history(*data: EventData) -> list[Event]:
    """As a log gives it out: what is broken does not say its version."""
    events = history_of(*data)
    return [replace(e, version=0) if isinstance(e.data, Broken) else e for e in events]


def test_a_fold_stops_and_says_why() -> None:
    with pytest.raises(JobOfLaterVersion, match="later version"):
        fold(history(submitted(), UNKNOWN, Completed(images=0)))
    with pytest.raises(JobDamaged, match="damaged"):
        fold(history(submitted(), BROKEN, Completed(images=0)))
    with pytest.raises(JobOfLaterVersion):
        fold(history(UNKNOWN))


@unreadable
def test_what_a_state_has_seen_does_not_stop_it(data: Unreadable) -> None:
    events = history(submitted(), data, Started(attempt=1, actor="a"))
    job = replace(folded([submitted()]), version=2, position=20)
    assert fold(events[:2], job) is job
    started = fold(events, job)
    assert started is not None
    assert (started.version, started.attempts) == (3, 1)


@unreadable
def test_what_was_readable_before_is_shown(data: Unreadable) -> None:
    started = Started(attempt=1, actor="a")
    job = fold_readable(history(submitted(), started, data, Completed(images=0)))
    assert job == folded([submitted(), started])
    assert fold_readable(history(data, Completed(images=0))) is None


@unreadable
def test_an_erased_job_is_erased_whatever_stood_there(data: Unreadable) -> None:
    events = history(submitted(), data, ERASED, Started(attempt=1, actor="late"))
    for job in (fold(events), fold_readable(events), fold(events[:3])):
        assert job is not None
        assert job.erased


@unreadable
def test_nothing_comes_back_behind_an_erasure_that_cannot_be_read(data: Unreadable) -> None:
    events = history(submitted(), ERASED, data)
    job = fold(events[2:], fold(events[:2]))
    assert job is not None
    assert job.erased


@unreadable
def test_an_erasure_needs_only_the_place_behind_the_last_event(data: Unreadable) -> None:
    events = history(submitted(), data, data)
    job = fold_for_erasure(events)
    assert job is not None
    assert (job.version, job.position) == (3, 30)
    assert fold_for_erasure(events, job) is job
    with pytest.raises(JobUnreadable):
        fold(events)
