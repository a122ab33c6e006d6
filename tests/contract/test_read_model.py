"""How events are folded into rows, on both databases: SQLite and Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import overload

import pytest

from events.ids import new_id
from events.job import fold
from events.store.database import Database
from events.store.read_model import ReadModel
from events.store.unsettled import UnsettledJob
from events.types import (
    AttemptFailed,
    Cancelled,
    CancelRequested,
    Completed,
    End,
    Event,
    Failed,
    Started,
)
from events.wire.callback_keys import callback_key
from tests.support.database import stored_images
from tests.support.events import MORNING, History, image, submitted

ADDRESS = "http://example.com/done"
ENDS = [Completed(images=1), Failed(message="No such checkpoint."), Cancelled()]


async def test_an_empty_read_model_starts_before_the_first_event(model: ReadModel) -> None:
    assert await model.checkpoint() == 0
    assert await model.job(new_id()) is None
    assert await model.jobs("alice") == []


async def test_apply_folds_and_moves_the_checkpoint_together(
    model: ReadModel, history: History
) -> None:
    first, second = new_id(), new_id()
    history.add(first, submitted(), Started(attempt=1, actor="a"))
    history.add(second, submitted(owner="bob"))
    history.add(first, image(0), Completed(images=1))
    assert await model.apply(history.events, expected=0)
    assert await model.checkpoint() == 5
    for job_id in (first, second):
        own = [event for event in history.events if event.job_id == job_id]
        assert await model.job(job_id) == fold(own)


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_batches_of_any_size_fold_alike(
    model: ReadModel, history: History, size: int
) -> None:
    job_id, other = new_id(), new_id()
    history.add(job_id, submitted(images=2), Started(attempt=1, actor="a"), image(0))
    history.add(other, submitted())
    history.add(job_id, AttemptFailed(attempt=1, message="Out of memory."))
    history.add(job_id, Started(attempt=2, actor="b"), image(0, attempt=2), image(1, attempt=2))
    history.add(job_id, CancelRequested(), Cancelled())
    for start in range(0, history.end, size):
        assert await model.apply(history.events[start : start + size], expected=start)
    assert await model.job(job_id) == fold(e for e in history.events if e.job_id == job_id)


async def test_the_first_image_of_an_index_has_the_row(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(images=2), Started(attempt=1, actor="a"), image(0))
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
    assert await model.checkpoint() == 2
    assert await model.job(job_id) is None
    assert await stored_images(database) == []


async def test_an_empty_batch_tells_only_whether_another_is_ahead(
    model: ReadModel, history: History
) -> None:
    await model.apply(history.add(new_id(), submitted()), expected=0)
    assert await model.apply([], expected=1)
    assert not await model.apply([], expected=0)
    assert await model.checkpoint() == 1


async def test_a_batch_applied_twice_changes_nothing(
    model: ReadModel, other_model: ReadModel, history: History
) -> None:
    job_id = new_id()
    batch = history.add(job_id, submitted(), Started(attempt=1, actor="a"))
    assert await model.apply(batch, expected=0)
    await model.apply(history.add(job_id, Completed(images=0)), expected=2)
    assert not await other_model.apply(batch, expected=0)
    assert await other_model.checkpoint() == 3
    assert await other_model.job(job_id) == fold(history.events)


async def test_events_that_a_row_has_seen_do_not_change_it(
    model: ReadModel, history: History
) -> None:
    """This holds even where the checkpoint is behind the rows."""
    job_id = new_id()
    history.add(job_id, submitted(), Started(attempt=1, actor="a"), Completed(images=0))
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
    assert await model.checkpoint() == 20
    assert len(await model.jobs("alice")) == 20


class BrokenBatch(Sequence[Event]):
    """Fails while it is read."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Event]: ...
    def __getitem__(self, index: int | slice) -> Event | Sequence[Event]:
        return self._events[index]

    def __iter__(self) -> Iterator[Event]:
        yield self._events[0]
        raise RuntimeError("power cut")


async def test_a_crash_while_the_batch_is_read_leaves_nothing(
    model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(), Started(attempt=1, actor="a"))
    with pytest.raises(RuntimeError, match="power cut"):
        await model.apply(BrokenBatch(history.events), expected=0)
    assert await model.checkpoint() == 0
    assert await model.job(job_id) is None
    assert await model.apply(history.events, expected=0)


async def test_a_crash_after_rows_were_written_leaves_nothing(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id = new_id()
    too_big = image(2**70)
    # Each driver has its own error and words.
    with pytest.raises(Exception, match=r"(?i)int|refused a row"):
        await model.apply(history.add(job_id, submitted(), image(1), too_big), expected=0)
    assert await model.checkpoint() == 0
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
    reached = await model.checkpoint()
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
    history.add(job_id, asked, Started(attempt=1, actor="a"))
    history.add(job_id, image(1, seed=2**64 - 1), image(0))
    history.add(job_id, AttemptFailed(attempt=1, message="Lost."), CancelRequested())
    if end is not None:
        history.add(job_id, end, at=MORNING + timedelta(minutes=1))
    history.events[0] = replace(history.events[0], traceparent="00-0af7651916cd43dd-b7ad6b71-01")
    await model.apply(history.events, expected=0)
    job = await model.job(job_id)
    assert job == fold(history.events)
    assert job is not None
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
    assert page == [
        UnsettledJob(
            first, position - 1, MORNING, callback_key(first, submitted(callback_url=ADDRESS))
        ),
        UnsettledJob(second, position, MORNING, callback_key(second, submitted())),
    ]
    assert await unsettled.page(after=0, limit=1) == page[:1]
    assert await unsettled.page(after=position - 1, limit=9) == page[1:]
    await unsettled.settle({first: MORNING, runs: MORNING})
    assert await unsettled.page(after=0, limit=9) == page[1:]
    await unsettled.reopen(first)
    await unsettled.reopen(runs)
    assert await unsettled.page(after=0, limit=9) == page
    await model.apply(history.add(runs, Completed(images=0)), expected=position)
    assert [job.id for job in await unsettled.page(after=position, limit=9)] == [runs]


async def test_the_place_among_the_unsettled_is_kept(
    model: ReadModel, other_model: ReadModel
) -> None:
    assert await model.unsettled.place() == 0
    for place in (2**40, 7):
        await model.unsettled.move_to(place)
        assert await other_model.unsettled.place() == place
    assert await model.checkpoint() == 0


async def test_of_sealed_addresses_a_row_without_its_request_has_the_number_alone(
    model: ReadModel, history: History
) -> None:
    job_id = new_id()
    history.add(job_id, submitted(image_puts=("sealed", "too")))
    await model.apply(history.events, expected=0)
    whole, short = [await model.job(job_id, with_request=each) for each in (True, False)]
    assert whole is not None
    assert short is not None
    assert whole.submitted.image_puts == ("sealed", "too")
    assert short.submitted.image_puts == ("", "")
