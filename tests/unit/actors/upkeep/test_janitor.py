"""Jobs, their erasures, files and uploads: what is removed, when, and what never is."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa

from actors.upkeep.janitor import Janitor
from events.decisions import Erase
from events.delivery import JITTER, WITHHELD_S
from events.errors import LogUnavailable
from events.ids import new_id
from events.job import fold
from events.store.tables import UPLOADS
from storage.images import ImageStoreUnavailable
from tests.support.failing_log import FailingLog
from tests.support.upkeep import ALL, DAY, HOUR, NOON, House


async def test_a_job_goes_when_its_time_is_over(house: House) -> None:
    old = await house.job()
    house.clock.time += DAY
    new = await house.job()
    running = await house.running_job()
    await house.project()
    house.clock.time = NOON + 7 * DAY
    await house.janitor().round()
    assert await house.traces(old) == ALL
    house.clock.time += HOUR
    await house.janitor().round()
    assert await house.traces(old) == set()
    assert await house.traces(new) == ALL
    assert await house.traces(running) == ALL - {"delivery"}


async def test_a_job_with_more_events_than_its_row_knows_stays_whole(house: House) -> None:
    """Of a later version, behind its end: nobody would find them without the row."""
    [job_id] = await house.jobs(age=8 * DAY)
    house.log.unreadable.add(job_id)
    await house.janitor().round()
    assert await house.traces(job_id) == ALL
    house.log.unreadable.clear()
    house.clock.time += HOUR
    await house.janitor().round()
    assert await house.traces(job_id) == set()


async def test_zero_days_keep_a_job_and_an_upload_for_good(house: House) -> None:
    key = await house.upload("a")
    [job_id] = await house.jobs(age=10_000 * DAY)
    await house.janitor(retention_days=0, upload_retention_days=0).round()
    assert await house.traces(job_id) == ALL
    assert await house.has_file(key)


async def test_a_job_outlives_the_tries_of_its_callback(house: House) -> None:
    [job_id] = await house.jobs()
    janitor = house.janitor(retention_days=0.001, callback_delays_s=(0, 86400))
    # A receiver may ask for an hour before the first try, too, and a breaker may keep it back.
    house.clock.time += (1 + JITTER) * (HOUR + DAY) + timedelta(seconds=WITHHELD_S)
    await janitor.round()
    assert await house.traces(job_id) == ALL
    house.clock.time += HOUR
    await janitor.round()
    assert await house.traces(job_id) == set()


@pytest.mark.parametrize("log", ["log", "deliveries"])
async def test_a_removal_that_was_cut_short_is_taken_up_again(house: House, log: str) -> None:
    job_id, other = await house.jobs(2, age=8 * DAY)
    broken: FailingLog = getattr(house, log)
    broken.purge_error = LogUnavailable()
    assert not await house.janitor(batch=2).round()  # trouble is no reason to hurry
    assert "row" in await house.traces(job_id)
    broken.recover()
    assert await house.janitor(batch=2).round()
    assert await house.traces(job_id) == await house.traces(other) == set()


async def test_a_round_is_bounded(house: House) -> None:
    ids = await house.jobs(5, age=8 * DAY)
    janitor = house.janitor(batch=2)
    more = [await janitor.round() for _ in range(3)]
    assert more == [True, True, False]
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 5


async def test_an_erased_job_is_looked_after_until_its_writer_is_surely_gone(house: House) -> None:
    job_id = await house.running_job()
    await house.writer.execute(Erase(), await house.load(job_id))
    await house.project()  # whoever asked for it died before anything was removed
    assert await house.traces(job_id) == {"image", "poster", "log", "row"}
    await house.janitor().round()
    [left] = await house.log.read(job_id)
    assert fold([left]) == await house.read_model.job(job_id)
    assert not await house.has_file(f"{job_id}/1/0.png")

    await house.put(f"{job_id}/1/1.png")  # the actor was still at it
    house.clock.time += HOUR
    await house.janitor().round()
    assert not await house.has_file(f"{job_id}/1/1.png")
    assert await house.read_model.due_erasures(house.clock(), limit=9) == []
    house.clock.time += 8 * DAY
    await house.janitor().round()
    assert await house.traces(job_id) == set()


async def test_what_cannot_be_erased_holds_up_no_others(house: House) -> None:
    ids = [await house.job() for _ in range(5)]
    for job_id in ids:
        await house.writer.execute(Erase(), await house.load(job_id))
        house.clock.time += timedelta(seconds=1)
    await house.project()
    janitor = house.janitor(batch=2)
    with house.failing("images.delete_folder", ImageStoreUnavailable(), of=ids[:3]):
        for _ in range(3):
            await janitor.round()
            house.clock.time += timedelta(minutes=1)
    assert [len(await house.log.read(job_id)) for job_id in ids[3:]] == [1, 1]
    await house.janitor().round()
    assert [len(await house.log.read(job_id)) for job_id in ids] == [1] * 5


async def test_what_cannot_be_removed_holds_up_no_others(house: House) -> None:
    ids = await house.jobs(5, age=8 * DAY)
    janitor = house.janitor(batch=2)
    with house.failing("images.delete_folder", ImageStoreUnavailable(), of=ids[:3]):
        for _ in range(3):
            await janitor.round()
    assert [await house.traces(job_id) for job_id in ids[3:]] == [set(), set()]
    await janitor.round()
    assert await house.traces(ids[2]) == ALL
    for _ in range(2):
        await janitor.round()
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 5


async def test_orphans_are_swept_when_they_are_old(house: House) -> None:
    ended, running = await house.job(), await house.running_job()
    kept = [f"{ended}/1/0.png", f"{running}/1/0.png", f"{running}/1/1.png", "notes/about.txt"]
    kept += [f"{ended}/1/0-poster.jpg", f"{running}/1/1-poster.jpg"]
    orphans = [
        f"{ended}/2/0.png",
        f"{ended}/1/1-poster.jpg",
        f"{new_id()}/1/0.png",
        "uploads/nobody/knows.png",
    ]
    for key in (*kept, *orphans):
        await house.put(key)
    upload = await house.upload("cat.png")
    janitor = house.janitor()
    await sweep(janitor)
    assert [await house.has_file(key) for key in orphans] == [True] * 4
    house.clock.time += 2 * HOUR
    await sweep(janitor)
    assert [await house.has_file(key) for key in orphans] == [False] * 4
    assert [await house.has_file(key) for key in (*kept, upload)] == [True] * 7


async def test_an_image_in_the_read_model_needs_no_log(house: House) -> None:
    """A log that was lost does not take the images with it."""
    [job_id] = await house.jobs()
    await house.log.purge(job_id)
    house.clock.time += 2 * HOUR
    await sweep(house.janitor())
    assert await house.has_file(f"{job_id}/1/0.png")
    assert await house.has_file(f"{job_id}/1/0-poster.jpg")


async def test_a_sweep_goes_on_where_it_stopped(house: House) -> None:
    orphans = [f"{new_id()}/1/0.png" for _ in range(7)]
    for key in orphans:
        await house.put(key)
    house.clock.time += 2 * HOUR
    janitor = house.janitor(batch=2)
    left = []
    for _ in range(4):
        await janitor.round()
        left.append(sum([await house.has_file(key) for key in orphans]))
    assert left == [5, 3, 1, 0]


async def sweep(janitor: Janitor) -> None:
    """Run more rounds than a walk through all files takes, so that the next walk begins, too."""
    for _ in range(5):
        await janitor.round()


async def test_uploads_go_when_nobody_needs_them(house: House) -> None:
    unused, used, replaced = [await house.upload(name) for name in ("a", "b", "c")]
    current = await house.upload("c")
    janitor = house.janitor(upload_retention_days=7, job_timeout_s=3600)
    house.clock.time += HOUR
    await janitor.round()
    assert await house.has_file(replaced)  # a job may have been accepted with it just before
    house.clock.time += timedelta(seconds=1)
    await janitor.round()
    assert not await house.has_file(replaced)
    house.clock.time += 6 * DAY
    await house.uploads.use("alice", ["b", "c"], house.clock())
    house.clock.time += DAY
    await janitor.round()
    assert [await house.has_file(key) for key in (unused, used, current)] == [False, True, True]
    assert await house.uploads.use("alice", ["a"], house.clock()) == {}


async def test_an_upload_whose_row_is_lost_outlives_the_jobs_that_name_it(house: House) -> None:
    """They were accepted before the database was lost, or restored from an older backup."""
    key = await house.upload("a")
    house.clock.time += 20 * DAY
    await house.database.execute(sa.delete(UPLOADS))
    janitor = house.janitor(job_timeout_s=86400)
    await sweep(janitor)
    house.clock.time += DAY - timedelta(seconds=1)
    await sweep(janitor)
    assert await house.has_file(key)
    house.clock.time += timedelta(seconds=1)
    await sweep(janitor)
    assert not await house.has_file(key)


async def test_an_upload_outlives_the_jobs_that_name_it(house: House) -> None:
    key = await house.upload("a")
    house.clock.time += DAY
    await house.janitor(upload_retention_days=0.1, job_timeout_s=90_000).round()
    assert await house.has_file(key)
