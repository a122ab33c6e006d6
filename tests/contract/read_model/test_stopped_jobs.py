"""Jobs that the read model stops at, and goes on with, on both databases."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from events.errors import JobUnreadable
from events.ids import new_id
from events.job import fold
from events.store.database import Database
from events.store.read_model import ReadModel
from events.types import (
    Broken,
    CancelRequested,
    Completed,
    Erased,
    Event,
    EventData,
    Flavour,
    Started,
    Unknown,
)
from tests.support.database import stored_images
from tests.support.events import MORNING, History, image, submitted

UNKNOWN = Unknown(original_type="darkroom.job.paused.v1")
BROKEN = Broken(why="cut off")
STARTED = Started(attempt=1, actor="a")
ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=MORNING)


def read_anew(events: Sequence[Event], *, instead: EventData) -> list[Event]:
    """The events as a version reads them that knows `UNKNOWN`, as `instead`."""
    return [replace(e, data=instead) if e.data == UNKNOWN else e for e in events]


async def stopped(model: ReadModel) -> dict[str, tuple[int, int]]:
    """First and last position that were left out, by job."""
    stops = await model.blocked.stops(limit=9)
    assert await model.blocked.count() == len(stops)
    return {stop.job_id: (stop.position, stop.seen) for stop in stops}


@pytest.mark.parametrize("data", [UNKNOWN, BROKEN], ids=["unknown", "broken"])
@pytest.mark.parametrize("size", [1, 2, 9])
async def test_a_job_stops_at_what_cannot_be_read_and_the_others_go_on(
    model: ReadModel, history: History, data: EventData, size: int
) -> None:
    job_id, other = new_id(), new_id()
    first = history.add(job_id, submitted())
    history.add(other, submitted(), STARTED)
    history.add(job_id, data, STARTED, image(0), Completed(images=1))
    history.add(other, CancelRequested())
    for start in range(0, history.end, size):
        assert await model.apply(history.events[start : start + size], expected=start)
    assert await model.job(job_id) == fold(first)
    assert await model.job(other) == fold(e for e in history.events if e.job_id == other)
    assert await stopped(model) == {job_id: (4, 7)}


async def test_it_goes_on_where_somebody_can_read_it(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(), UNKNOWN, STARTED, image(0))
    await model.apply(history.events, expected=0)
    with pytest.raises(JobUnreadable):
        await model.catch_up(job_id, history.events)
    assert job_id in await stopped(model)
    known = read_anew(history.events, instead=CancelRequested())
    assert await model.catch_up(job_id, known)
    assert await model.job(job_id) == fold(known)
    assert [row[0] for row in await stored_images(database)] == [job_id]
    assert await stopped(model) == {}
    await model.apply(history.add(job_id, Completed(images=1)), expected=4)
    job = await model.job(job_id)
    assert job is not None
    assert (job.end, job.cancel_requested) == (Completed(images=1), True)
    assert not await model.catch_up(job_id, known)


async def test_no_event_is_lost_that_comes_while_it_is_read(
    model: ReadModel, other_model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(), UNKNOWN)
    await model.apply(history.events, expected=0)
    early = read_anew(history.events, instead=CancelRequested())
    await other_model.apply(history.add(job_id, STARTED), expected=2)
    assert not await model.catch_up(job_id, early)
    assert await stopped(model) == {job_id: (2, 3)}
    assert await model.catch_up(job_id, read_anew(history.events, instead=CancelRequested()))
    assert await stopped(model) == {}


async def test_events_behind_one_that_has_not_come_are_left_out(
    model: ReadModel, history: History
) -> None:
    job_id, unseen = new_id(), new_id()
    history.add(job_id, submitted(), CancelRequested(), STARTED)
    history.add(unseen, submitted(), STARTED)
    seen = [event for event in history.events if event.position not in {2, 4}]
    await model.apply(seen, expected=0)
    assert await stopped(model) == {job_id: (3, 3), unseen: (5, 5)}
    for stop in (job_id, unseen):
        own = [event for event in history.events if event.job_id == stop]
        assert await model.catch_up(stop, own)
        assert await model.job(stop) == fold(own)


async def test_a_row_that_went_on_without_the_event_is_replaced(
    model: ReadModel, history: History
) -> None:
    """By a version that knew nothing of stops, and passed events over."""
    job_id = new_id()
    history.add(job_id, submitted(), UNKNOWN)
    await model.apply(history.events, expected=0)
    history.add(job_id, STARTED)
    first, _, last = history.events
    gone_on = fold([last], fold([first]))
    assert gone_on is not None
    async with model._database.write() as connection:
        await model._put(connection, [gone_on])
    known = read_anew(history.events, instead=CancelRequested())
    assert await model.catch_up(job_id, known)
    assert await model.job(job_id) == fold(known)


async def test_an_erasure_ends_the_stop(model: ReadModel, history: History) -> None:
    job_id = new_id()
    history.add(job_id, submitted(), UNKNOWN)
    await model.apply(history.events, expected=0)
    await model.apply(history.add(job_id, ERASED), expected=2)
    assert await stopped(model) == {}
    job = await model.job(job_id)
    assert job is not None
    assert job.erased


async def test_a_removed_job_is_stopped_at_no_longer(model: ReadModel, history: History) -> None:
    gone, removed = new_id(), new_id()
    history.add(gone, UNKNOWN)
    history.add(removed, submitted(), UNKNOWN)
    await model.apply(history.events, expected=0)
    row = await model.job(removed)
    assert row is not None
    await model.remove({removed: row.position})
    assert await stopped(model) == {gone: (1, 1)}
    assert await model.catch_up(gone, [])
    assert await stopped(model) == {}


async def test_a_stop_is_told_once(
    model: ReadModel, history: History, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = new_id()
    with caplog.at_level(logging.INFO):
        await model.apply(history.add(job_id, submitted(), UNKNOWN, STARTED), expected=0)
        await model.apply(history.add(job_id, UNKNOWN), expected=3)
    [line] = [record for record in caplog.records if record.message == "job stopped at"]
    assert vars(line)["job_id"] == job_id
    assert "darkroom.job.paused.v1" in vars(line)["why"]


async def test_stops_are_listed_in_log_order_page_by_page(
    model: ReadModel, history: History
) -> None:
    jobs = [new_id() for _ in range(5)]
    for job_id in jobs:
        history.add(job_id, UNKNOWN)
    await model.apply(history.events, expected=0)
    listed, after = [], 0
    while page := await model.blocked.stops(after=after, limit=2):
        listed += [stop.job_id for stop in page]
        after = page[-1].position
    assert listed == jobs
