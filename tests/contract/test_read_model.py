"""How events are folded into rows, on both databases: SQLite and Postgres."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from events.errors import JobUnreadable
from events.ids import new_id
from events.job import fold
from events.store.database import Database
from events.store.ended_jobs import UnsettledJob
from events.store.read_model import ReadModel
from events.types import (
    AttemptFailed,
    Broken,
    Cancelled,
    CancelRequested,
    Completed,
    End,
    Event,
    EventData,
    Failed,
    Poster,
    Started,
    Unknown,
)
from tests.support.database import stored_images, stored_job
from tests.support.events import MORNING, History, erased, image, submitted

ADDRESS = "http://example.com/done"
STARTED = Started(attempt=1, actor="a")
ENDS = [Completed(images=1), Failed(message="No such checkpoint."), Cancelled()]


@pytest.mark.parametrize("size", [1, 2, 3, 9])
async def test_batches_of_any_size_fold_alike(
    model: ReadModel, history: History, size: int
) -> None:
    job_id, other = new_id(), new_id()
    history.add(job_id, submitted(images=2), STARTED, image(0))
    history.add(other, submitted())
    history.add(job_id, AttemptFailed(attempt=1, message="Out of memory."))
    history.add(job_id, Started(attempt=2, actor="b"), image(0, attempt=2), image(1, attempt=2))
    history.add(job_id, CancelRequested(), Cancelled())
    assert await model.offset() == 0
    assert await model.job(job_id) is None
    for start in range(0, history.end, size):
        assert await model.apply(history.events[start : start + size], expected=start)
    assert await model.offset() == history.end
    assert await model.job(other) == fold(e for e in history.events if e.job_id == other)
    assert await model.job(job_id) == fold(e for e in history.events if e.job_id == job_id)


async def test_the_first_image_of_an_index_has_the_row(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(images=2), STARTED, image(0))
    await model.apply(history.events, expected=0)
    later = history.add(job_id, image(0, attempt=2), image(1), Completed(images=2), image(2))
    await model.apply(later, expected=3)
    assert await stored_images(database) == [
        (job_id, "job/1/0", 2**33, "sha256:00", 3),
        (job_id, "job/1/1", 2**33, "sha256:00", 5),
    ]


async def test_events_of_a_job_that_was_never_submitted_only_move_the_checkpoint(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    assert await model.apply(history.add(job_id, Cancelled(), image(0)), expected=0)
    assert await model.offset() == 2
    assert await model.job(job_id) is None
    assert await stored_images(database) == []


async def test_an_empty_batch_tells_only_whether_another_is_ahead(
    model: ReadModel, history: History
) -> None:
    await model.apply(history.add(new_id(), submitted()), expected=0)
    assert await model.apply([], expected=1)
    assert not await model.apply([], expected=0)
    assert await model.offset() == 1


async def test_a_batch_applied_twice_changes_nothing(
    model: ReadModel, other_model: ReadModel, history: History
) -> None:
    job_id = new_id()
    batch = history.add(job_id, submitted(), STARTED)
    assert await model.apply(batch, expected=0)
    await model.apply(history.add(job_id, Completed(images=0)), expected=2)
    assert not await other_model.apply(batch, expected=0)
    assert await other_model.offset() == 3
    assert await other_model.job(job_id) == fold(history.events)


async def test_events_that_a_row_has_seen_do_not_change_it(
    model: ReadModel, history: History
) -> None:
    """This holds even where the checkpoint is behind the rows."""
    job_id = new_id()
    history.add(job_id, submitted(), STARTED, Completed(images=0))
    await model.apply(history.events, expected=0)
    again = [*history.events[1:], *history.add(new_id(), submitted())]
    assert await model.apply(again, expected=3)
    assert await model.job(job_id) == fold(history.events[:3])


async def test_of_two_instances_racing_from_one_checkpoint_one_wins(
    model: ReadModel, other_model: ReadModel, history: History
) -> None:
    for start in range(20):
        batch = history.add(new_id(), submitted())
        outcomes = await asyncio.gather(
            model.apply(batch, expected=start),
            other_model.apply(batch, expected=start),
            model.apply(batch, expected=start),
        )
        assert sorted(outcomes) == [False, False, True]
    assert await model.offset() == 20
    assert len(await model.jobs("alice")) == 20


async def test_a_crash_after_rows_were_written_leaves_nothing(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    too_big = image(2**70)
    # Each driver has its own error and words.
    with pytest.raises(Exception, match=r"(?i)int|refused a row"):
        await model.apply(history.add(job_id, submitted(), image(1), too_big), expected=0)
    assert await model.offset() == 0
    assert await model.job(job_id) is None
    assert await stored_images(database) == []


async def test_a_cancelled_apply_frees_the_database(model: ReadModel, history: History) -> None:
    history.add(new_id(), submitted())
    for turns in range(40):
        task = asyncio.ensure_future(model.apply(history.events, expected=0))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    reached = await model.offset()
    assert await model.apply(history.add(new_id(), submitted()), expected=reached)


@pytest.mark.parametrize("end", [None, *ENDS], ids=lambda end: type(end).__name__)
async def test_a_job_comes_back_as_it_was_folded(
    model: ReadModel, history: History, end: End | None
) -> None:
    job_id = new_id()
    request = {"prompt": "ein Kreis \u25cf\x00\u2028", "seed": 2**64 - 1, "mask": None, "cfg": 7.5}
    asked = submitted(
        request=request, images=2, callback_url="https://example.com/", deadline_s=0.5
    )
    history.add(job_id, asked, STARTED)
    history.add(job_id, image(1, seed=2**64 - 1), image(0))
    history.add(job_id, AttemptFailed(attempt=1, message="Lost."), CancelRequested())
    if end is not None:
        history.add(job_id, end, at=MORNING + timedelta(minutes=1))
    history.events[0] = replace(history.events[0], traceparent="00-0af7651916cd43dd-b7ad6b71-01")
    await model.apply(history.events, expected=0)
    job = await stored_job(model, job_id)
    assert job == fold(history.events)
    assert type(job.end) is type(end)
    assert job.submitted_at.utcoffset() == timedelta(0)


async def test_unsettled_are_those_that_ended_and_whose_callback_is_not_known_to_have(
    model: ReadModel, history: History
) -> None:
    runs, silent, first, second = (new_id() for _ in range(4))
    for id in (runs, first):
        history.add(id, submitted(callback_url=ADDRESS))
    history.add(second, submitted(image_puts=("sealed",)))
    history.add(silent, submitted(), Cancelled())
    for id in (first, second):
        history.add(id, Completed(images=0))
    await model.apply(history.events, expected=0)
    unsettled = model.unsettled
    page = await unsettled.page(after=0, limit=9)
    position = history.end
    assert [replace(job, hot_since=None) for job in page] == [
        UnsettledJob(first, position - 1, MORNING, has_delivery=True, hot_since=None),
        UnsettledJob(second, position, MORNING, has_delivery=True, hot_since=None),
    ]
    assert await unsettled.page(after=0, limit=1) == page[:1]
    assert await unsettled.page(after=position - 1, limit=9) == page[1:]
    of_runs = replace(page[0], id=runs, hot_since=None)
    changed = replace(page[1], hot_since=MORNING - timedelta(hours=1))
    await unsettled.settle({page[0]: MORNING, of_runs: MORNING, changed: MORNING})
    assert await unsettled.page(after=0, limit=9) == page[1:]
    await unsettled.reopen(first)
    await unsettled.reopen(runs)
    assert await unsettled.page(after=0, limit=9) == page
    await model.apply(history.add(runs, Completed(images=0)), expected=position)
    assert [job.id for job in await unsettled.page(after=position, limit=9)] == [runs]


async def test_the_place_among_the_unsettled_is_kept(
    model: ReadModel, other_model: ReadModel
) -> None:
    assert await model.unsettled.stored_position() == 0
    for place in (2**40, 7):
        await model.unsettled.store_position(place)
        assert await other_model.unsettled.stored_position() == place
    assert await model.offset() == 0


async def test_of_sealed_addresses_a_row_without_its_request_has_the_number_alone(
    model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(image_puts=("sealed", "too"), sealed_extra_data="sealed"))
    await model.apply(history.events, expected=0)
    jobs = [await model.job(job_id, with_request=each) for each in (True, False)]
    assert [job and job.submitted.image_puts for job in jobs] == [("sealed", "too"), ("", "")]
    assert [job and job.submitted.sealed_extra_data for job in jobs] == ["sealed", None]


# Jobs at which it stops, and continues later.


UNKNOWN = Unknown(original_type="darkroom.job.paused.v1")
BROKEN = Broken(why="cut off")
ERASED = erased()


def read_anew(events: Sequence[Event], *, instead: EventData) -> list[Event]:
    """The events as a version reads them that knows `UNKNOWN`, as `instead`."""
    return [replace(e, data=instead) if e.data == UNKNOWN else e for e in events]


async def stopped(model: ReadModel) -> dict[str, tuple[int, int]]:
    """First and last position that were left out, by job."""
    stops = await model.blocked.page(limit=9)
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
    job = await stored_job(model, job_id)
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


async def test_an_erasure_ends_the_stop(model: ReadModel, history: History) -> None:
    job_id = new_id()
    history.add(job_id, submitted(), UNKNOWN)
    await model.apply(history.events, expected=0)
    await model.apply(history.add(job_id, ERASED), expected=2)
    assert await stopped(model) == {}
    assert (await stored_job(model, job_id)).erased


async def test_a_removed_job_is_stopped_at_no_longer(model: ReadModel, history: History) -> None:
    gone, removed = new_id(), new_id()
    history.add(gone, UNKNOWN)
    history.add(removed, submitted(), UNKNOWN)
    await model.apply(history.events, expected=0)
    row = await stored_job(model, removed)
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
    while page := await model.blocked.page(after=after, limit=2):
        listed += [stop.job_id for stop in page]
        after = page[-1].position
    assert listed == jobs


# Rows of jobs that were erased or removed.


CONTENT = ("red circle", "job/1/0")
"""Parts of a request and of an image's key, which an erased job's rows must not hold."""


def a_whole_job(history: History, job_id: str) -> list[Event]:
    return history.add(job_id, submitted(), STARTED, image(0), Completed(images=1))


async def shows_content(database: Database) -> bool:
    async with database.write() as connection:
        jobs = await connection.exec_driver_sql("SELECT state || summary FROM jobs")
        state = "".join(jobs.scalars())
    return bool(await stored_images(database)) or any(text in state for text in CONTENT)


async def test_an_erased_job_leaves_no_content(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id, kept = new_id(), new_id()
    await model.apply(a_whole_job(history, job_id), expected=0)
    assert await shows_content(database)
    await model.apply(history.add(job_id, ERASED), expected=4)
    assert not await shows_content(database)
    await model.apply(history.add(kept, submitted()), expected=5)
    assert [job.id for job in await model.jobs("alice")] == [kept]
    assert await model.open_job_ids() == [kept]
    assert await model.job(job_id) == fold(history.events[4:5])


async def test_a_projection_that_lags_does_not_bring_an_erased_job_back(
    database: Database, model: ReadModel, history: History
) -> None:
    before = a_whole_job(history, job_id := new_id())
    last = history.add(job_id, ERASED)
    job = fold(last)
    assert job is not None
    await model.erase(job)
    assert await model.apply(before, expected=0)
    assert not await shows_content(database)
    assert await model.job(job_id) == job
    assert await model.apply(last, expected=4)
    assert await model.job(job_id) == job


async def test_a_projection_that_read_the_row_before_the_erasure_does_not_replace_it(
    database: Database, model: ReadModel, history: History
) -> None:
    before = fold(a_whole_job(history, job_id := new_id()))
    after = fold(history.add(job_id, ERASED))
    assert before is not None
    assert after is not None
    await model.erase(after)
    async with database.write() as connection:
        await model._put(connection, [before])
    assert await model.job(job_id) == after


async def test_one_batch_with_a_job_and_its_erasure_leaves_no_content(
    database: Database, model: ReadModel, history: History
) -> None:
    events = [*a_whole_job(history, job_id := new_id()), *history.add(job_id, ERASED)]
    await model.apply(events, expected=0)
    assert not await shows_content(database)


async def test_an_erasure_is_due_until_it_is_settled(model: ReadModel, history: History) -> None:
    job_id, later = new_id(), MORNING + timedelta(hours=1)
    await model.apply([*a_whole_job(history, job_id), *history.add(job_id, ERASED)], expected=0)
    assert await model.due_erasures(MORNING, limit=9) == [(job_id, MORNING)]
    await model.settle_erasure(job_id, again_at=later)
    assert await model.due_erasures(MORNING, limit=9) == []
    assert await model.due_erasures(later, limit=9) == [(job_id, MORNING)]
    await model.settle_erasure(job_id, again_at=None)
    assert await model.due_erasures(later, limit=9) == []


async def test_a_poster_is_a_file_of_its_job(model: ReadModel, history: History) -> None:
    poster = Poster(key="job/1/0-poster.jpg", size_bytes=3, digest="sha256:00")
    job_id, video = new_id(), image(0, media_type="video/mp4", poster=poster, text="a\0cat")
    await model.apply(history.add(job_id, submitted(), video), expected=0)
    assert await model.image_keys([job_id]) == {"job/1/0", "job/1/0-poster.jpg"}
    assert (await stored_job(model, job_id)).images == (video,)


async def test_a_removed_job_has_no_rows(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id, kept = new_id(), new_id()
    await model.apply([*a_whole_job(history, job_id), *a_whole_job(history, kept)], expected=0)
    assert await model.image_keys([job_id, new_id()]) == {"job/1/0"}
    assert await model.image_keys([]) == set()
    ended = await stored_job(model, job_id)
    await model.remove({job_id: ended.position - 1})  # that of a job which had the id before
    assert await model.job(job_id) == ended
    for _ in range(2):
        await model.remove({job_id: ended.position})
    assert await model.job(job_id) is None
    assert [row[0] for row in await stored_images(database)] == [kept]
