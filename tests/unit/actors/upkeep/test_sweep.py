"""Files that belong to nothing, and uploads: what is removed, when, and what never is."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from actors.upkeep.janitor import Janitor
from events.ids import new_id
from events.store.tables import UPLOADS
from tests.support.upkeep import DAY, HOUR, House


async def test_orphans_are_swept_when_they_are_old(house: House) -> None:
    ended, running = await house.job(), await house.running_job()
    kept = [f"{ended}/1/0.png", f"{running}/1/0.png", f"{running}/1/1.png", "notes/about.txt"]
    orphans = [f"{ended}/2/0.png", f"{new_id()}/1/0.png", "uploads/nobody/knows.png"]
    for key in (*kept, *orphans):
        await house.put(key)
    upload = await house.upload("cat.png")
    janitor = house.janitor()
    await sweep(janitor)
    assert [await house.has_file(key) for key in orphans] == [True] * 3
    house.clock.time += 2 * HOUR
    await sweep(janitor)
    assert [await house.has_file(key) for key in orphans] == [False] * 3
    assert [await house.has_file(key) for key in (*kept, upload)] == [True] * 5


async def test_an_image_in_the_read_model_needs_no_log(house: House) -> None:
    """A log that was lost does not take the images with it."""
    job_id = await house.job()
    await house.project()
    await house.log.purge(job_id)
    house.clock.time += 2 * HOUR
    await sweep(house.janitor())
    assert await house.has_file(f"{job_id}/1/0.png")


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


async def test_zero_days_keep_an_upload_for_good(house: House) -> None:
    key = await house.upload("a")
    house.clock.time += 10_000 * DAY
    await house.janitor(upload_retention_days=0).round()
    assert await house.has_file(key)


async def test_an_upload_outlives_the_jobs_that_name_it(house: House) -> None:
    key = await house.upload("a")
    house.clock.time += DAY
    await house.janitor(upload_retention_days=0.1, job_timeout_s=90_000).round()
    assert await house.has_file(key)
