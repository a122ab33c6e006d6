"""The database's data of ended jobs, their histories and their events in the log, on both
databases.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy as sa

from events.ids import new_id
from events.store.database import Database
from events.store.ended_jobs import EndedJob, EndedJobs
from events.store.read_model import ReadModel
from events.store.tables import JOBS
from events.types import Cancelled
from storage.file_names import HistoryName
from tests.support.database import stored_job
from tests.support.events import MORNING, History, erased, submitted

DAY = timedelta(days=1)


@pytest.fixture
def model(database: Database) -> ReadModel:
    """Which has known of every end for a day, whenever that was."""
    return ReadModel(database, now=lambda: MORNING - DAY)


@pytest.fixture
def ended_jobs(database: Database) -> EndedJobs:
    return EndedJobs(database)


@pytest.fixture
async def job(model: ReadModel, history: History, ended_jobs: EndedJobs) -> EndedJob:
    """A job that ended."""
    await model.apply(history.add(new_id(), submitted(), Cancelled()), expected=0)
    [job] = await ended_jobs.due_for_move(MORNING, limit=9)
    return job


async def move(ended_jobs: EndedJobs, *jobs: EndedJob) -> list[EndedJob]:
    named = await ended_jobs.store_history_keys({job: f"{job.id}/history-2-0.gz" for job in jobs})
    await ended_jobs.mark_moved(named, MORNING)
    return named


async def test_jobs_that_are_ended_and_cool_are_found(
    model: ReadModel, history: History, ended_jobs: EndedJobs
) -> None:
    late, early, running, gone = (new_id() for _ in range(4))
    history.add(late, submitted(), at=MORNING + 3 * DAY)
    history.add(late, Cancelled(), at=MORNING + 4 * DAY)
    history.add(early, submitted(), at=MORNING + DAY)
    history.add(early, Cancelled(), at=MORNING + 2 * DAY)
    history.add(running, submitted())
    history.add(gone, submitted(), Cancelled(), erased(), at=MORNING + DAY)
    await model.apply(history.events, expected=0)

    async def cool(days: int, *, limit: int = 9) -> set[str]:
        return {job.id for job in await ended_jobs.due_for_move(MORNING + days * DAY, limit=limit)}

    assert await cool(-2) == set()
    assert await cool(-1) == {gone, early, late}
    assert len(await cool(-1, limit=2)) == 2
    await ended_jobs.restart_hot_time(early, MORNING + 3 * DAY)
    await ended_jobs.restart_hot_time(running, MORNING + 3 * DAY)
    assert await cool(2) == {gone, late}
    assert await cool(3) == {gone, early, late}
    [hot] = [
        job for job in await ended_jobs.due_for_move(MORNING + 5 * DAY, limit=9) if job.id == late
    ]
    await ended_jobs.postpone([hot], MORNING + 4 * DAY)
    assert await cool(3) == {gone, early}
    assert [job.id for job in await ended_jobs.ended_before(MORNING + 2 * DAY, limit=9)] == [gone]
    assert (await ended_jobs.rows_of([late, running])).keys() == {late}


async def test_jobs_with_a_history_behind_an_offset_are_found(
    model: ReadModel, history: History, ended_jobs: EndedJobs
) -> None:
    first, second, hot, others = (new_id() for _ in range(4))
    for job_id in (first, second, hot):
        history.add(job_id, submitted(), Cancelled())
    history.add(others, submitted(owner="bob"), Cancelled())
    await model.apply(history.events, expected=0)
    jobs = {job.id: job for job in await ended_jobs.due_for_move(MORNING, limit=9)}
    await move(ended_jobs, *(jobs[each] for each in (first, second, others)))

    async def found(after: int, *, limit: int = 9) -> list[str]:
        return [id for id, _ in await ended_jobs.with_history("alice", after=after, limit=limit)]

    assert await found(0) == [first, second]
    assert await found(0, limit=1) == [first]
    assert await found(jobs[first].position) == [second]
    assert await found(jobs[second].position) == []


async def test_a_walk_through_old_jobs_goes_on_behind_the_last(
    model: ReadModel, history: History, ended_jobs: EndedJobs
) -> None:
    ids = [new_id() for _ in range(5)]
    for number, job_id in enumerate(ids):  # the first three ended at the same time
        history.add(job_id, submitted(), Cancelled(), at=MORNING + max(0, number - 2) * DAY)
    await model.apply(history.events, expected=0)
    found: list[str] = []
    last = None
    while jobs := await ended_jobs.ended_before(MORNING + 9 * DAY, after=last, limit=2):
        found += [job.id for job in jobs]
        last = jobs[-1]
    assert found == sorted(ids[:3]) + ids[3:]


async def test_a_job_that_left_the_log_takes_its_bytes_of_the_image_store_instead(
    database: Database, model: ReadModel, ended_jobs: EndedJobs, job: EndedJob
) -> None:
    await database.execute(sa.update(JOBS).values(log_bytes=3000))
    _, hot = await model.usage.kept_bytes("alice")
    assert await ended_jobs.find_history(job.id) is None
    assert await ended_jobs.find_histories([job.id, new_id()]) == {job.id: (None, True)}
    [named] = await ended_jobs.store_history_keys({replace(job, log_bytes=3000): "key"})
    assert await ended_jobs.find_history(job.id) == "key"
    assert await ended_jobs.find_histories([job.id]) == {job.id: ("key", True)}
    assert await ended_jobs.due_for_move(MORNING, limit=9) == [named]
    for _ in range(2):
        await ended_jobs.mark_moved([named], MORNING)
    assert await ended_jobs.find_histories([job.id]) == {job.id: ("key", False)}
    assert await ended_jobs.due_for_move(MORNING + DAY, limit=9) == []
    _, cold = await model.usage.kept_bytes("alice")
    assert (cold.log_bytes, cold.result_bytes) == (0, hot.result_bytes + hot.log_bytes)
    assert hot.log_bytes == 3000
    assert not await model.unsettled.has(job.id)


async def test_a_job_that_left_the_log_is_hot_again_once_it_is_erased(
    model: ReadModel, history: History, ended_jobs: EndedJobs, job: EndedJob
) -> None:
    await move(ended_jobs, job)
    await model.apply(history.add(job.id, erased()), expected=2)
    [again] = await ended_jobs.due_for_move(MORNING, limit=9)
    assert (again.version, again.history) == (3, None)
    only = HistoryName(job.id, 3, 0).key
    await ended_jobs.mark_moved(await ended_jobs.store_history_keys({again: only}), MORNING)
    await model.erase(await stored_job(model, job.id))  # as where `DELETE` is asked for once more
    assert await ended_jobs.find_histories([job.id]) == {job.id: (only, False)}


async def test_a_row_that_changed_is_not_taken(
    model: ReadModel, history: History, ended_jobs: EndedJobs, job: EndedJob
) -> None:
    other_id = new_id()
    await model.apply(history.add(other_id, submitted(), Cancelled()), expected=2)
    [other] = [
        each for each in await ended_jobs.due_for_move(MORNING, limit=9) if each.id == other_id
    ]
    await ended_jobs.restart_hot_time(job.id, MORNING)
    assert await ended_jobs.store_history_keys({job: "a", other: "b"}) == [
        replace(other, history="b")
    ]
    assert await ended_jobs.find_history(job.id) is None
    await ended_jobs.restart_hot_time(other.id, MORNING)
    await ended_jobs.mark_moved([replace(other, history="b")], MORNING)
    assert await ended_jobs.find_histories([other.id]) == {other.id: ("b", True)}


async def test_an_id_that_a_removed_job_had_is_the_next_ones(
    model: ReadModel, history: History, job: EndedJob
) -> None:
    """Its row was not deleted yet: the database was away when the janitor came to it."""
    again = History()
    again.events = history.events
    again.add(job.id, submitted(fingerprint="again"))
    await model.apply(again.events[2:], expected=2)
    row = await stored_job(model, job.id)
    assert (row.submitted.fingerprint, row.end) == ("again", None)
    await model.remove({job.id: job.position})
    assert await model.job(job.id) == row
