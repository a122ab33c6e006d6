"""What the database knows of ended jobs in the log and of segments, on both databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest
import sqlalchemy as sa

from events.archive.archive import SegmentRef
from events.ids import new_id
from events.store.archiving.hot_jobs import HotJob, HotJobs
from events.store.archiving.segments import Segments, SegmentState, Written
from events.store.database import Database
from events.store.read_model import ReadModel
from events.store.tables import JOBS
from events.types import Cancelled, Erased, Flavour
from tests.support.events import MORNING, History, submitted

DAY = timedelta(days=1)
ERASED = Erased(flavour=Flavour.DIFFUSION, owner="alice", endpoint="default", submitted_at=MORNING)


def ref() -> SegmentRef:
    return SegmentRef(MORNING.date(), 3, new_id())


@pytest.fixture
def model(database: Database) -> ReadModel:
    """Which has known of every end for a day, whenever that was."""
    return ReadModel(database, now=lambda: MORNING - DAY)


@pytest.fixture
def hot_jobs(database: Database) -> HotJobs:
    return HotJobs(database)


@pytest.fixture
def segments(database: Database) -> Segments:
    return Segments(database)


@pytest.fixture
async def job(model: ReadModel, history: History, hot_jobs: HotJobs) -> HotJob:
    """A job that ended."""
    await model.apply(history.add(new_id(), submitted(), Cancelled()), expected=0)
    [job] = await hot_jobs.cool(MORNING, limit=9)
    return job


async def written(
    segments: Segments, new: SegmentRef, *, archived: list[HotJob], sources: list[SegmentRef]
) -> bool:
    await segments.begin(new, MORNING)
    return await segments.commit(
        Written(new, jobs=1, size_bytes=9, archived=archived, sources=sources), MORNING
    )


async def test_jobs_that_ended_and_cooled_are_found(
    model: ReadModel, history: History, hot_jobs: HotJobs
) -> None:
    late, early, running, erased = (new_id() for _ in range(4))
    history.add(late, submitted(), at=MORNING + 3 * DAY)
    history.add(late, Cancelled(), at=MORNING + 4 * DAY)
    history.add(early, submitted(), at=MORNING + DAY)
    history.add(early, Cancelled(), at=MORNING + 2 * DAY)
    history.add(running, submitted())
    history.add(erased, submitted(), Cancelled(), ERASED, at=MORNING + DAY)
    await model.apply(history.events, expected=0)

    async def cool(days: int, *, limit: int = 9) -> list[str]:
        return [job.id for job in await hot_jobs.cool(MORNING + days * DAY, limit=limit)]

    assert await cool(1) == [erased]
    assert await cool(5) == [erased, early, late]
    assert await cool(5, limit=1) == [erased]
    await hot_jobs.heat(early, MORNING + 3 * DAY)
    await hot_jobs.heat(running, MORNING + 3 * DAY)
    assert await cool(2) == [erased]
    assert await cool(3) == [erased, early]
    old = await hot_jobs.old(MORNING + 2 * DAY, cool_since=MORNING + 5 * DAY, limit=9)
    assert [job.id for job in old] == [erased]


async def test_jobs_that_left_the_log_behind_a_position_are_found(
    model: ReadModel, history: History, hot_jobs: HotJobs, segments: Segments
) -> None:
    first, second, hot, others = (new_id() for _ in range(4))
    for job_id in (first, second, hot):
        history.add(job_id, submitted(), Cancelled())
    history.add(others, submitted(owner="bob"), Cancelled())
    await model.apply(history.events, expected=0)
    jobs = {job.id: job for job in await hot_jobs.cool(MORNING, limit=9)}
    left = [jobs[each] for each in (first, second, others)]
    assert await written(segments, ref(), archived=left, sources=[])

    async def found(after: int, *, limit: int = 9) -> list[str]:
        return [id for id, _ in await hot_jobs.left("alice", after=after, limit=limit)]

    assert await found(0) == [first, second]
    assert await found(0, limit=1) == [first]
    assert await found(jobs[first].position) == [second]
    assert await found(jobs[second].position) == []


async def test_a_walk_through_old_jobs_goes_on_behind_the_last(
    model: ReadModel, history: History, hot_jobs: HotJobs
) -> None:
    ids = [new_id() for _ in range(5)]
    for number, job_id in enumerate(ids):  # the first three ended at the same time
        history.add(job_id, submitted(), Cancelled(), at=MORNING + max(0, number - 2) * DAY)
    await model.apply(history.events, expected=0)
    found: list[str] = []
    last = None
    while jobs := await hot_jobs.old(
        MORNING + 9 * DAY, cool_since=MORNING + 9 * DAY, after=last, limit=2
    ):
        found += [job.id for job in jobs]
        last = jobs[-1]
    assert found == sorted(ids[:3]) + ids[3:]


async def test_an_archived_job_takes_its_bytes_of_the_image_store_instead_of_the_log(
    database: Database, model: ReadModel, hot_jobs: HotJobs, segments: Segments, job: HotJob
) -> None:
    new = ref()
    await database.execute(sa.update(JOBS).values(log_bytes=3000))
    _, hot = await model.usage.kept_bytes("alice")
    assert await segments.find(job.id) is None
    large = replace(job, log_bytes=3000)
    assert await written(segments, new, archived=[large], sources=[])
    assert await segments.find(job.id) == new
    assert await hot_jobs.cool(MORNING + DAY, limit=9) == []
    _, cold = await model.usage.kept_bytes("alice")
    assert (cold.log_bytes, cold.result_bytes) == (0, hot.result_bytes + hot.log_bytes)
    assert hot.log_bytes == 3000
    assert await segments.in_state(SegmentState.PURGING) == [new]
    await segments.purged(new, MORNING)
    assert await segments.in_state(SegmentState.WHOLE, since=MORNING) == [new]


async def test_what_is_stored_of_an_archived_job_makes_it_hot(
    model: ReadModel, history: History, hot_jobs: HotJobs, segments: Segments, job: HotJob
) -> None:
    new = ref()
    assert await written(segments, new, archived=[job], sources=[])
    await model.apply(history.add(job.id, ERASED), expected=2)
    [erased] = await hot_jobs.cool(MORNING, limit=9)
    assert (erased.version, erased.segment) == (3, new.id)
    assert await segments.find(job.id) == new


async def test_a_row_that_changed_is_not_taken(
    model: ReadModel, history: History, hot_jobs: HotJobs, segments: Segments, job: HotJob
) -> None:
    assert await hot_jobs.unchanged([job])
    await hot_jobs.heat(job.id, MORNING)
    assert not await hot_jobs.unchanged([job])
    assert not await written(segments, new := ref(), archived=[job], sources=[])
    assert await segments.find(job.id) is None
    assert await segments.in_state(SegmentState.WRITING) == [new]


async def test_a_rewritten_segment_is_found_by_the_rows_that_name_the_first(
    segments: Segments, job: HotJob
) -> None:
    first, second, third = ref(), ref(), ref()
    assert await written(segments, first, archived=[job], sources=[])
    for before, after in ((first, second), (second, third)):
        assert await segments.are_stored([before])
        assert await written(segments, after, archived=[], sources=[before])
        assert not await segments.are_stored([before])
        assert await segments.find(job.id) == after
        assert not await segments.is_settled(3)
        await segments.gone(before)
        assert await segments.is_settled(3)
    assert not await written(segments, ref(), archived=[], sources=[second])
    [row] = await segments.rows_of(third, [job.id, new_id()])
    assert (row.job_id, row.position, row.is_hot) == (job.id, job.position, False)
    await segments.remove(third)
    assert await segments.known([first, second, third]) == set()


async def test_a_segment_that_is_given_up_cannot_be_committed(
    segments: Segments, job: HotJob
) -> None:
    new = ref()
    await segments.begin(new, MORNING)
    await segments.give_up(new)
    late = Written(new, jobs=1, size_bytes=9, archived=[job])
    assert not await segments.commit(late, MORNING)
    assert await segments.in_state(SegmentState.DOOMED, partition=3) == [new]
    await segments.gone(new)
    assert await segments.known([new]) == set()


async def test_segments_are_found_by_day_and_size(segments: Segments) -> None:
    old = SegmentRef(date(2026, 2, 1), 3, new_id())
    new = ref()
    await segments.add(old, jobs=5, size_bytes=100, now=MORNING)
    await segments.add(new, jobs=5, size_bytes=200, now=MORNING)
    assert await segments.until(date(2026, 1, 31), limit=9) == []
    assert await segments.until(old.day, limit=9) == [old]
    assert await segments.small(200, limit=9) == [(old, 100)]
    await segments.put_off(old, MORNING + DAY)
    assert await segments.until(new.day, limit=9) == [new, old]


async def test_an_id_that_a_removed_job_had_is_the_next_ones(
    model: ReadModel, history: History, job: HotJob
) -> None:
    """Its row was not deleted yet: the database was away when the janitor came to it."""
    again = History()
    again.events = history.events
    again.add(job.id, submitted(fingerprint="again"))
    await model.apply(again.events[2:], expected=2)
    row = await model.job(job.id)
    assert row is not None
    assert (row.submitted.fingerprint, row.end) == ("again", None)
    await model.remove({job.id: job.position})
    assert await model.job(job.id) == row
