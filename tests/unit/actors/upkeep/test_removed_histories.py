"""Jobs that left the log are erased and removed for good, whenever a process dies."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from events.decisions import Erase
from events.errors import DatabaseUnavailable
from events.log import JobWriter
from events.store.database import Database
from events.store.tables import UPLOADS
from storage.file_names import HistoryName
from storage.images import ImageStoreUnavailable
from tests.support.upkeep import ALL, DAY, HOUR, House

URL = "https://example.com/done"


async def erase(house: House, job_id: str) -> bool:
    """Do what `DELETE` does."""
    row = await house.read_model.job(job_id)
    assert row is not None
    job = (await JobWriter(house.history.log, now=house.clock).execute(Erase(), row)).job
    assert job is not None
    return await house.removal.hide(job)


async def test_the_history_of_an_erased_job_goes_and_others_stay(house: House) -> None:
    gone, other = await house.moved(2)
    before = await house.history.read(other)
    assert await erase(house, gone)
    assert await house.history_keys(gone) == []
    assert await house.history.read(other) == before
    assert await erase(house, gone)


async def test_a_late_erasure_takes_nothing_of_a_new_job_with_the_id(house: House) -> None:
    [job_id] = await house.jobs()
    assert await house.removal.erase(job_id)
    assert await house.has_file(f"{job_id}/1/0.png")
    assert len(await house.history.deliveries(job_id)) == 1


async def test_one_event_of_an_erased_job_leaves_the_log_and_stays(house: House) -> None:
    gone, _ = await house.moved(2)
    assert await erase(house, gone)
    house.clock.time += 2 * HOUR
    await house.historian().round()
    assert await house.log.read(gone) == []
    for _ in range(2):
        assert await erase(house, gone)
        await house.janitor().round()
        [left] = await house.history.read(gone)
        assert left.data.type_name == "darkroom.job.erased.v1"
        house.clock.time += HOUR
    assert await house.read_model.due_erasures(house.clock(), limit=9) == []


@pytest.mark.parametrize("after", [False, True])
async def test_an_erasure_that_was_cut_short_is_ended(house: House, *, after: bool) -> None:
    [gone] = await house.moved()
    with house.failing("images.delete", ImageStoreUnavailable(), after=after):
        assert not await erase(house, gone)
    await house.janitor().round()
    assert await house.history_keys(gone) == []
    assert len(await house.history.read(gone)) == 1


async def test_what_a_late_historian_leaves_of_an_erased_job_goes_in_the_end(house: House) -> None:
    """It died after it had stored the object, which the row does not name."""
    [gone] = await house.moved()
    [key] = await house.history_keys(gone)
    data = await house.images.get(key)
    assert await erase(house, gone)
    await house.images.put(key, data)
    house.clock.time += HOUR
    await house.janitor().round()
    assert await house.history_keys(gone) == []


async def test_retention_removes_histories_job_by_job(house: House) -> None:
    old = await house.moved(3)
    house.clock.time += DAY
    [new] = await house.moved()
    house.clock.time += 6 * DAY - 2 * HOUR
    await house.janitor().round()
    assert [await house.traces(job_id) for job_id in old] == [set()] * 3
    assert await house.traces(new) == {"image", "poster", "history", "row"}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["images.delete_folder", "read_model.remove"])
async def test_a_removal_cut_short_is_ended(house: House, step: str, *, after: bool) -> None:
    ids = await house.moved(3)
    house.clock.time += 9 * DAY
    with house.failing(step, ImageStoreUnavailable(), after=after):
        assert not await house.janitor().round()
    await house.janitor().round()
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 3


async def test_a_job_stays_while_it_is_called_back_again(house: House) -> None:
    first, second = await house.moved(2, callback_url=URL)
    await house.ask_again(first)
    house.clock.time += 9 * DAY
    await house.janitor().round()
    assert await house.traces(first) == {"image", "poster", "history", "delivery", "row"}
    assert await house.traces(second) == set()
    [asked] = await house.deliveries.read(first)
    await house.deliver(first, version=3, expected=asked.position)
    await house.janitor().round()
    assert await house.traces(first) == set()


async def test_a_job_with_a_lost_history_goes_even_if_it_is_to_be_called_back(house: House) -> None:
    """Nothing is left that could be sent."""
    [job_id] = await house.moved(callback_url=URL)
    [key] = await house.history_keys(job_id)
    await house.ask_again(job_id)
    await house.images.delete(key)
    house.clock.time += 9 * DAY
    await house.janitor().round()
    assert await house.traces(job_id) == set()


async def test_no_job_goes_before_its_callback_was_delivered(house: House) -> None:
    waiting, done = await house.ended_job(callback_url=URL), await house.job(callback_url=URL)
    await house.project()
    house.clock.time += 20 * DAY
    janitor = house.janitor(batch=1)
    for _ in range(4):
        await janitor.round()
        house.clock.time += timedelta(seconds=1)
    assert await house.traces(waiting) == ALL - {"delivery"}
    assert await house.traces(done) == set()
    await house.deliver(waiting)
    for _ in range(2):
        await janitor.round()
    assert await house.traces(waiting) == set()


@pytest.mark.parametrize("is_projected", [False, True])
async def test_the_id_of_a_removed_job_is_another_ones(house: House, *, is_projected: bool) -> None:
    """The database was away when the janitor came to its row; its Idempotency-Key came again."""
    [job_id] = await house.jobs(age=8 * DAY)
    with house.failing("read_model.remove", DatabaseUnavailable()):
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


async def sweep(house: House) -> None:
    """Walks through all files, long after the last of them was stored."""
    janitor = house.janitor(retention_days=0, upload_retention_days=0)
    for _ in range(6):
        house.clock.time += 30 * DAY
        await janitor.round()


async def lose_rows(house: House, *job_ids: str) -> None:
    for job_id in job_ids:
        row = await house.read_model.job(job_id)
        assert row is not None
        await house.read_model.remove({job_id: row.position})


async def test_a_history_that_was_replaced_is_swept(house: House) -> None:
    [job_id] = await house.moved()
    [key] = await house.history_keys(job_id)
    await house.images.put(HistoryName(job_id, 4, 0).key, await house.images.get(key))
    await sweep(house)
    assert await house.history_keys(job_id) == [key]
    assert len(await house.history.read(job_id)) == 5


async def test_the_objects_of_a_hot_job_are_left_to_the_historian(house: House) -> None:
    """It may be about to name one of them."""
    [job_id] = await house.moved()
    [key] = await house.history_keys(job_id)
    later = HistoryName(job_id, 5, 3).key
    await house.images.put(later, await house.images.get(key))
    await house.ended_jobs.restart_hot_time(job_id, house.clock())
    await sweep(house)
    assert await house.history_keys(job_id) == [key, later]


async def test_lost_rows_have_nothing_swept(house: House, caplog: pytest.LogCaptureFixture) -> None:
    first, second = await house.moved(2)
    upload = await house.upload("in.png")
    await lose_rows(house, first, second)
    await house.database.execute(sa.delete(UPLOADS))
    await sweep(house)
    for job_id in (first, second):
        assert len(await house.history_keys(job_id)) == 1
        assert await house.has_file(f"{job_id}/1/0.png")
    assert await house.has_file(upload)
    said = {each.message for each in caplog.records if each.levelname == "ERROR"}
    assert said == {"a job with a history has no row: rebuild the read model"}


async def test_an_object_without_a_row_goes_after_the_retention_time(house: House) -> None:
    """As a historian has left it that died behind a janitor."""
    [job_id] = await house.moved()
    await lose_rows(house, job_id)
    janitor = house.janitor(retention_days=60, upload_retention_days=0)
    house.clock.time += 50 * DAY
    for _ in range(3):
        await janitor.round()
    assert len(await house.history_keys(job_id)) == 1
    house.clock.time += 20 * DAY
    for _ in range(6):
        await janitor.round()
    assert await house.history_keys(job_id) == []
    assert not await house.has_file(f"{job_id}/1/0.png")


async def test_what_an_older_database_does_not_know_stays(house: House, tmp_path: Path) -> None:
    """It was restored from a copy of before the job left the log."""
    [job_id] = await house.jobs()
    with closing(sqlite3.connect(tmp_path / "darkroom.sqlite3")) as database:
        database.execute("VACUUM INTO ?", [str(tmp_path / "older.sqlite3")])
    house.clock.time += 2 * HOUR
    await house.historian().round()
    older = Database(f"sqlite+aiosqlite:///{tmp_path / 'older.sqlite3'}")
    await sweep(House(house.folder, older, house.clock, house.log, house.deliveries))
    await older.close()
    assert len(await house.history.read(job_id)) == 5
    assert await house.has_file(f"{job_id}/1/0.png")
