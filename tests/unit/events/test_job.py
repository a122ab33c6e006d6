"""The fold of events to a job, also of events that this version cannot read."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.errors import JobDamaged, JobOfLaterVersion, JobUnreadable
from events.job import Job, fold, fold_for_erasure, fold_readable
from events.types import (
    AttemptFailed,
    Blame,
    Broken,
    Cancelled,
    CancelRequested,
    Completed,
    DispatchFailed,
    Erased,
    Event,
    EventData,
    Failed,
    Flavour,
    JobCost,
    Started,
    Submitted,
    Unknown,
    Unreadable,
)
from tests.support.events import JOB_ID, START, folded, history_of, image, submitted

ENDS: list[EventData] = [Completed(images=1), Failed(message="No."), Cancelled()]

ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=START)

later_events = st.one_of(
    st.builds(
        Started,
        attempt=st.integers(1, 4),
        actor=st.sampled_from("ab"),
        exclusive=st.sampled_from([None, True]),
    ),
    st.builds(image, st.integers(0, 3), attempt=st.integers(1, 4)),
    st.builds(
        AttemptFailed,
        attempt=st.integers(1, 4),
        message=st.text(max_size=5),
        blame=st.sampled_from([None, *Blame]),
    ),
    st.builds(DispatchFailed, failure=st.integers(1, 4), message=st.text(max_size=5)),
    st.just(CancelRequested()),
    st.sampled_from(ENDS),
)
histories = st.lists(later_events, max_size=12).map(lambda events: history_of(submitted(), *events))
erasable = st.lists(later_events | st.just(ERASED), max_size=12).map(
    lambda events: history_of(submitted(), *events)
)
places = st.integers(0, 13)


def job_of(events: list[Event], before: Job | None = None) -> Job:
    job = fold(events, before)
    assert job is not None
    return job


def test_an_open_job_counts_for_the_most_that_its_results_may_take() -> None:
    cost = JobCost(work=1, live_bytes=1, rows=1, tokens=1, outputs=2, result_bytes=700)
    job = folded([submitted(cost=cost)])
    assert job.result_bytes == 700
    assert replace(job, end=Cancelled()).result_bytes == 0


@given(erasable, places, places)
def test_folding_in_pieces_that_may_overlap_is_folding_whole(
    events: list[Event], one: int, other: int
) -> None:
    start, stop = sorted([one, other])
    assert fold(events[start:], fold(events[: max(stop, 1)])) == fold(events)


@given(histories)
def test_after_an_end_only_version_and_position_move(events: list[Event]) -> None:
    for length in range(1, len(events)):
        job, whole = job_of(events[:length]), job_of(events)
        if job.end is not None:
            assert whole == replace(job, version=whole.version, position=whole.position)


@given(histories)
def test_the_first_image_of_an_index_stays(events: list[Event]) -> None:
    for length in range(1, len(events)):
        job, whole = job_of(events[:length]), job_of(events)
        assert [whole.image(each.index) for each in job.images] == list(job.images)
        assert [each.index for each in whole.images] == sorted({i.index for i in whole.images})


@given(histories)
def test_a_job_counts_every_event(events: list[Event]) -> None:
    job = job_of(events)
    assert (job.version, job.position) == (events[-1].version, events[-1].position)


def test_events_without_a_submission_fold_to_no_job() -> None:
    assert fold([]) is None
    assert fold(history_of(Started(attempt=1, actor="a"), Cancelled())) is None


def test_a_submission_is_a_job_that_waits() -> None:
    job = folded([submitted(deadline_s=90)])
    assert isinstance(job.submitted, Submitted)
    assert (job.id, job.version, job.position) == (JOB_ID, 1, 10)
    assert (job.attempts, job.actor, job.started_at, job.end) == (0, None, None, None)
    assert job.submitted_at == START
    assert job.deadline == START + timedelta(seconds=90)


def test_a_second_attempt_keeps_images_and_the_first_start() -> None:
    first = Started(attempt=1, actor="a")
    lost = AttemptFailed(attempt=1, message="The worker was lost.")
    again = Started(attempt=2, actor="b")
    job = folded([submitted(images=2), first, image(1), lost, again, image(0, attempt=2)])
    assert (job.attempts, job.actor, job.last_failure) == (2, "b", "The worker was lost.")
    assert job.started_at == START + timedelta(seconds=1)
    assert job.images == (image(0, attempt=2), image(1))


def test_only_failures_of_its_own_are_charged_to_a_job() -> None:
    def failed(blame: Blame | None) -> AttemptFailed:
        return AttemptFailed(attempt=1, message="It died.", blame=blame)

    first, alone = Started(attempt=1, actor="a"), Started(attempt=2, actor="a", exclusive=True)
    for events, charged, is_suspect in [
        ([first], 0, False),
        ([first, failed(None)], 1, False),
        ([first, failed(Blame.BYSTANDER)], 0, False),
        ([first, failed(Blame.SUSPECT)], 0, True),
        ([first, first], 0, True),  # the first broke off without a word
        ([first, alone, alone], 0, True),  # and nobody saw how the second did
        ([first, alone, failed(Blame.BYSTANDER)], 0, True),
        ([first, alone, failed(None)], 1, True),
    ]:
        job = folded([submitted(), *events])
        assert (job.blamed_attempts, job.is_suspect) == (charged, is_suspect), events


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_an_end_has_its_time(end: EventData) -> None:
    job = folded([submitted(), Started(attempt=1, actor="a"), end])
    assert (job.end, type(job.end)) == (end, type(end))
    assert job.ended_at == START + timedelta(seconds=2)


@given(histories)
def test_an_erased_job_is_what_its_last_event_alone_says(events: list[Event]) -> None:
    erased = history_of(*(event.data for event in events), ERASED)
    job = job_of(erased)
    assert fold(erased[-1:]) == job
    assert job.erased
    assert (job.submitted.request, job.images, job.submitted.callback_url) == ({}, (), None)
    assert (job.submitted.owner, job.submitted_at) == ("alice", START)
    assert isinstance(job.end, Cancelled)


@given(histories)
def test_nothing_comes_back_behind_an_erasure(events: list[Event]) -> None:
    job = job_of(history_of(submitted(), ERASED, *(event.data for event in events)))
    assert (job.erased, job.images) == (True, ())


# Events that this version cannot read.

UNKNOWN = Unknown(original_type="darkroom.job.paused.v1")
BROKEN = Broken(why="cut off")
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
    started = job_of(events, job)
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
    assert job_of(events[2:], fold(events[:2])).erased


@unreadable
def test_an_erasure_needs_only_the_place_behind_the_last_event(data: Unreadable) -> None:
    events = history(submitted(), data, data)
    job = fold_for_erasure(events)
    assert job is not None
    assert (job.version, job.position) == (3, 30)
    assert fold_for_erasure(events, job) is job
    with pytest.raises(JobUnreadable):
        fold(events)
