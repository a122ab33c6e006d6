"""Jobs of the archive are erased and removed for good, whenever whoever does it dies."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from events.archive.archive import SegmentRef
from events.archive.segment import pack
from events.decisions import Erase
from events.errors import DatabaseUnavailable
from events.ids import new_id, partition_of
from events.job import Job
from events.log import JobWriter
from storage.images import ImageNotFound, ImageStoreUnavailable
from tests.support.upkeep import ALL, DAY, HOUR, NOON, House

URL = "https://example.com/done"


async def archived_jobs(house: House, count: int) -> list[str]:
    """In one segment: all of one partition."""
    ids: list[str] = []
    while len(ids) < count:
        job_id = new_id()
        if partition_of(job_id) == 3:
            ids.append(await house.job(job_id=job_id))
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert len(await objects(house)) == 1
    return ids


async def objects(house: House) -> list[SegmentRef]:
    return [ref async for ref in house.archive.segments()]


async def traces_in_archive(house: House, job_id: str) -> list[int]:
    """How many events of the job each object has that has some."""
    return [
        len(job.events)
        for ref in await objects(house)
        async for job in house.archive.scan(ref)
        if job.job_id == job_id
    ]


async def erase(house: House, job_id: str) -> bool:
    """What `DELETE` does."""
    row = await house.read_model.job(job_id)
    assert row is not None
    job = (await JobWriter(house.history.log, now=house.clock).execute(Erase(), row)).job
    assert job is not None
    return await house.removal.hide(job)


async def test_an_erased_job_leaves_its_segment_and_the_others_stay(house: House) -> None:
    gone, *others = await archived_jobs(house, 4)
    before = [await house.history.read(other) for other in others]
    assert await erase(house, gone)
    assert await traces_in_archive(house, gone) == []
    assert [await house.history.read(other) for other in others] == before
    assert await erase(house, gone)


async def test_of_an_erased_job_one_event_is_archived_and_stays(house: House) -> None:
    gone, _ = await archived_jobs(house, 2)
    assert await erase(house, gone)
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await house.log.read(gone) == []
    for _ in range(2):
        await house.janitor().round()
        [left] = await house.history.read(gone)
        assert left.data.type_name == "darkroom.job.erased.v1"
        house.clock.time += HOUR
    assert await house.read_model.due_erasures(house.clock(), limit=9) == []


async def test_many_are_erased_from_one_segment_at_once(house: House) -> None:
    *gone, kept = await archived_jobs(house, 6)
    answers = await asyncio.gather(*(erase(house, job_id) for job_id in gone))
    if not all(answers):
        await house.janitor().round()
    for job_id in gone:
        assert await traces_in_archive(house, job_id) == []
    assert len(await house.history.read(kept)) == 5
    assert len(await objects(house)) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("part", "step"),
    [
        ("segments", "begin"),
        ("archive", "write"),
        ("segments", "commit"),
        ("archive", "delete"),
        ("segments", "gone"),
    ],
)
async def test_an_erasure_that_was_cut_short_is_ended(
    house: House, monkeypatch: pytest.MonkeyPatch, part: str, step: str, *, after: bool
) -> None:
    gone, kept = await archived_jobs(house, 2)
    story = await house.history.read(kept)
    owner = getattr(house, part)
    real = getattr(owner, step)

    async def dying(*args: Any, **named: Any) -> Any:
        if after:
            await real(*args, **named)
        raise ImageStoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dying)
        assert not await erase(house, gone)
        if await house.removal.erase(gone):
            assert await traces_in_archive(house, gone) == []
    house.clock.time += timedelta(minutes=3)
    await house.archiver().round()
    await house.janitor().round()
    assert await house.removal.erase(gone)
    assert await traces_in_archive(house, gone) == []
    assert await house.history.read(kept) == story
    assert len(await objects(house)) == 1


async def test_an_erasure_is_not_done_while_a_segment_is_written_that_may_have_the_job(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    write, answers = house.archive.write, []

    async def meanwhile(*args: Any) -> int:
        size = await write(*args)
        answers.append(await erase(house, job_id))
        return size

    with monkeypatch.context() as patch:
        patch.setattr(house.archive, "write", meanwhile)
        await house.archiver().round()
    assert answers == [False]
    await house.janitor().round()
    assert await house.removal.erase(job_id)
    assert await traces_in_archive(house, job_id) == []


async def test_retention_removes_whole_segments(house: House) -> None:
    old = await archived_jobs(house, 3)
    house.clock.time += DAY
    [new] = [await house.job()]
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    house.clock.time = (NOON + 8 * DAY).replace(hour=0) - timedelta(seconds=1)
    await house.janitor().round()
    assert len(await objects(house)) == 2
    house.clock.time += timedelta(seconds=1)
    assert await house.janitor().round()
    assert [await house.traces(job_id) for job_id in old] == [set()] * 3
    assert len(await objects(house)) == 1
    assert await house.traces(new) == {"image", "row"}
    assert not await house.janitor().round()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("part", "step"),
    [("images", "delete_folder"), ("read_model", "remove"), ("archive", "delete")],
)
async def test_a_segment_whose_removal_was_cut_short_is_removed(
    house: House, monkeypatch: pytest.MonkeyPatch, part: str, step: str, *, after: bool
) -> None:
    ids = await archived_jobs(house, 3)
    house.clock.time += 9 * DAY
    owner = getattr(house, part)
    real = getattr(owner, step)

    async def dying(*args: Any, **named: Any) -> None:
        if after:
            await real(*args, **named)
        raise ImageStoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, dying)
        assert not await house.janitor().round()
    assert await house.janitor().round()
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 3
    assert await objects(house) == []


async def test_a_segment_stays_while_one_of_its_jobs_is_called_back_again(house: House) -> None:
    first, second = await archived_jobs(house, 2)
    await house.hot_jobs.heat(first, house.clock())
    house.clock.time += 9 * DAY
    assert not await house.janitor().round()
    assert len(await house.history.read(second)) == 5
    await house.archiver().round()
    assert await house.janitor().round()
    assert await house.traces(first) == await house.traces(second) == set()


async def test_no_job_goes_before_its_callback_was_delivered(house: House) -> None:
    waiting, done = await house.ended_job(callback_url=URL), await house.job(callback_url=URL)
    await house.project()
    house.clock.time += 20 * DAY
    janitor = house.janitor(batch=1)
    for _ in range(3):
        await janitor.round()
        house.clock.time += timedelta(seconds=1)
    assert await house.traces(waiting) == ALL - {"delivery"}
    assert await house.traces(done) == set()
    await house.deliver(waiting)
    house.clock.time += HOUR
    await janitor.round()
    assert await house.traces(waiting) == set()


@pytest.mark.parametrize("is_projected", [False, True])
async def test_the_id_of_a_removed_job_is_another_ones(
    house: House, monkeypatch: pytest.MonkeyPatch, *, is_projected: bool
) -> None:
    """The database was away when the janitor came to its row; its Idempotency-Key came again."""
    job_id = await house.job()
    await house.project()
    house.clock.time += 8 * DAY

    async def away(*_: Any) -> None:
        raise DatabaseUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(house.read_model, "remove", away)
        await house.janitor().round()
    assert await house.log.read(job_id) == []
    await house.running_job(job_id=job_id)
    before = await house.load(job_id)
    if is_projected:
        await house.project()
    await house.janitor().round()
    assert await house.load(job_id) == before
    assert await house.has_file(f"{job_id}/1/0.png")
    if not is_projected:
        assert await house.read_model.job(job_id) is None
        await house.project()
    assert await house.read_model.job(job_id) == before


class TestLeftOvers:
    """Objects that the table does not know."""

    async def test_what_a_stalled_writer_left_is_swept(self, house: House) -> None:
        [job_id] = await archived_jobs(house, 1)
        [ref] = await objects(house)
        stray = SegmentRef(ref.day, ref.partition, new_id())
        await house.archive.write(stray, list(pack([j async for j in house.archive.scan(ref)])))
        await self.sweep(house)
        assert await objects(house) == [ref]
        assert len(await house.history.read(job_id)) == 5

    @pytest.mark.parametrize("age", [timedelta(0), 300 * DAY])
    async def test_nothing_is_swept_where_the_rows_are_lost(
        self, house: House, age: timedelta
    ) -> None:
        [job_id] = await archived_jobs(house, 1)
        [ref] = await objects(house)
        row: Job | None = await house.read_model.job(job_id)
        assert row is not None
        await house.read_model.remove({job_id: row.position})
        await house.segments.remove(ref)
        await self.sweep(house, age=age)
        assert await objects(house) == [ref]
        assert await house.has_file(f"{job_id}/1/0.png")

    async def sweep(self, house: House, *, age: timedelta = 300 * DAY) -> None:
        house.clock.time += age
        janitor = house.janitor(retention_days=0)
        for _ in range(5):
            await janitor.round()


async def test_a_segment_that_is_lost_stops_nothing(house: House) -> None:
    lost, *_ = await archived_jobs(house, 2)
    [ref] = await objects(house)
    await house.archive.delete(ref)
    with pytest.raises(ImageNotFound):
        await house.history.read(lost)
    await house.hot_jobs.heat(lost, house.clock())
    other = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await traces_in_archive(house, other) == [5]
