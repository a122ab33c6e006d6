"""Jobs and their erasures: what is removed, when, and what never is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from events.decisions import Erase
from events.errors import LogUnavailable
from events.job import fold
from events.store.leases import Leases
from storage.images import ImageStoreUnavailable
from tests.support.failing_log import FailingLog
from tests.support.polling import eventually
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
    job_id = await house.job()
    await house.project()
    house.log.unreadable.add(job_id)
    house.clock.time += 8 * DAY
    await house.janitor().round()
    assert await house.traces(job_id) == ALL
    house.log.unreadable.clear()
    house.clock.time += HOUR
    await house.janitor().round()
    assert await house.traces(job_id) == set()


async def test_zero_days_keep_a_job_for_good(house: House) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 10_000 * DAY
    await house.janitor(retention_days=0).round()
    assert await house.traces(job_id) == ALL


async def test_a_job_outlives_the_tries_of_its_callback(house: House) -> None:
    job_id = await house.job()
    await house.project()
    janitor = house.janitor(
        retention_days=0.001,
        callback_delays_s=(0, 86400),
        callback_jitter=0.5,
        callback_withheld_s=2 * 86400,
    )
    # A receiver may ask for an hour before the first try, too, and a breaker may keep it back.
    house.clock.time += 1.5 * (HOUR + DAY) + 2 * DAY
    await janitor.round()
    assert await house.traces(job_id) == ALL
    house.clock.time += HOUR
    await janitor.round()
    assert await house.traces(job_id) == set()


@pytest.mark.parametrize("log", ["log", "deliveries"])
async def test_a_removal_that_was_cut_short_is_taken_up_again(house: House, log: str) -> None:
    job_id, other = await house.job(), await house.job()
    await house.project()
    house.clock.time += 8 * DAY
    broken: FailingLog = getattr(house, log)
    broken.purge_error = LogUnavailable()
    assert not await house.janitor(batch=2).round()  # trouble is no reason to hurry
    assert "row" in await house.traces(job_id)
    broken.recover()
    assert await house.janitor(batch=2).round()
    assert await house.traces(job_id) == await house.traces(other) == set()


async def test_a_round_is_bounded(house: House) -> None:
    ids = [await house.job() for _ in range(5)]
    await house.project()
    house.clock.time += 8 * DAY
    janitor = house.janitor(batch=2)
    more = [await janitor.round() for _ in range(3)]
    assert more == [True, True, False]
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 5


async def test_an_erased_job_is_looked_after_until_its_writer_is_surely_gone(
    house: House,
) -> None:
    job_id = await house.running_job()
    await house.writer.execute(Erase(), await house.load(job_id))
    await house.project()  # whoever asked for it died before anything was removed
    assert await house.traces(job_id) == {"image", "log", "row"}
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


async def test_an_erasure_that_fails_is_tried_again(house: House) -> None:
    job_id = await house.job()
    await house.writer.execute(Erase(), await house.load(job_id))
    await house.project()
    house.log.purge_error = LogUnavailable()
    await house.janitor().round()
    assert len(await house.log.read(job_id)) > 1
    house.log.recover()
    await house.janitor().round()
    assert len(await house.log.read(job_id)) == 1


async def test_what_cannot_be_erased_holds_up_no_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await house.job() for _ in range(5)]
    for job_id in ids:
        await house.writer.execute(Erase(), await house.load(job_id))
        house.clock.time += timedelta(seconds=1)
    await house.project()
    break_folders(house, monkeypatch, ids[:3])
    janitor = house.janitor(batch=2)
    for _ in range(3):
        await janitor.round()
        house.clock.time += timedelta(minutes=1)
    assert [len(await house.log.read(job_id)) for job_id in ids[3:]] == [1, 1]
    monkeypatch.undo()
    await house.janitor().round()
    assert [len(await house.log.read(job_id)) for job_id in ids] == [1] * 5


async def test_what_cannot_be_removed_holds_up_no_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await house.job() for _ in range(5)]
    await house.project()
    house.clock.time += 8 * DAY
    break_folders(house, monkeypatch, ids[:3])
    janitor = house.janitor(batch=2)
    for _ in range(3):
        await janitor.round()
    assert [await house.traces(job_id) for job_id in ids[3:]] == [set(), set()]
    monkeypatch.undo()
    await janitor.round()
    assert await house.traces(ids[2]) == ALL
    for _ in range(2):
        await janitor.round()
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 5


def break_folders(house: House, monkeypatch: pytest.MonkeyPatch, job_ids: Sequence[str]) -> None:
    """Have the image store refuse to delete these jobs' files."""
    real = house.images.delete_folder

    async def refuse(folder: str, *, stored_by: datetime | None = None) -> None:
        if folder in job_ids:
            raise ImageStoreUnavailable("Permission denied.")
        await real(folder, stored_by=stored_by)

    monkeypatch.setattr(house.images, "delete_folder", refuse)


async def test_one_of_two_janitors_works(house: House) -> None:
    job_id = await house.job()
    await house.project()
    house.clock.time += 8 * DAY
    assert await Leases(house.database).acquire("janitor", "other", ttl_s=1.0)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(house.janitor(janitor_period_s=0.05).run())
        assert await house.traces(job_id) == ALL

        async def is_gone() -> bool:
            return not await house.traces(job_id)

        await eventually(is_gone)  # the other's lease ran out
        running.cancel()
