"""Rows of jobs that were erased or removed, on both databases."""

from __future__ import annotations

from datetime import timedelta

from events.ids import new_id
from events.job import fold
from events.store.database import Database
from events.store.read_model import ReadModel
from events.types import (
    Completed,
    Erased,
    Event,
    Flavour,
    Started,
)
from tests.support.database import stored_images
from tests.support.events import MORNING, History, image, submitted

ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=MORNING)
CONTENT = ("red circle", "job/1/0")
"""Parts of a request and of an image's key, which an erased job's rows must not hold."""


def a_whole_job(history: History, job_id: str) -> list[Event]:
    started = Started(attempt=1, actor="a")
    return history.add(job_id, submitted(), started, image(0), Completed(images=1))


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
    job = await model.job(job_id)
    assert job is not None
    assert job == fold(history.events[4:5])


async def test_a_projection_that_lags_does_not_bring_an_erased_job_back(
    database: Database, model: ReadModel, history: History
) -> None:
    before = a_whole_job(history, job_id := new_id())
    [erased] = history.add(job_id, ERASED)
    job = fold([erased])
    assert job is not None
    await model.erase(job)
    assert await model.apply(before, expected=0)
    assert not await shows_content(database)
    assert await model.job(job_id) == job
    assert await model.apply([erased], expected=4)
    assert await model.job(job_id) == job


async def test_a_projection_that_read_the_row_before_the_erasure_does_not_replace_it(
    database: Database, model: ReadModel, history: History
) -> None:
    before = fold(a_whole_job(history, job_id := new_id()))
    erased = fold(history.add(job_id, ERASED))
    assert before is not None
    assert erased is not None
    await model.erase(erased)
    async with database.write() as connection:
        await model._put(connection, [before])
    assert await model.job(job_id) == erased


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


async def test_a_removed_job_has_no_rows(
    database: Database, model: ReadModel, history: History
) -> None:
    job_id, kept = new_id(), new_id()
    await model.apply([*a_whole_job(history, job_id), *a_whole_job(history, kept)], expected=0)
    assert await model.image_keys([job_id, new_id()]) == {"job/1/0"}
    assert await model.image_keys([]) == set()
    ended = await model.job(job_id)
    assert ended is not None
    await model.remove({job_id: ended.position - 1})  # that of a job which had the id before
    assert await model.job(job_id) == ended
    for _ in range(2):
        await model.remove({job_id: ended.position})
    assert await model.job(job_id) is None
    assert [row[0] for row in await stored_images(database)] == [kept]
