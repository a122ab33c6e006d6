"""A segment whose object is lost: its jobs go when their time is over, and nothing else waits."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from events.errors import LogUnavailable
from events.ids import new_id
from events.store.archiving.segments import SegmentState
from events.types import Event, RedeliveryRequested
from tests.support.upkeep import DAY, HOUR, House

URL = "https://example.com/done"


async def lost_segment(house: House, **named: Any) -> list[str]:
    """Two jobs, archived together or apart; their objects are gone."""
    ids = [await house.job(**named) for _ in range(2)]
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    await house.images.delete_folder("archive")
    return ids


async def remove_all(house: House) -> None:
    janitor = house.janitor()
    for _ in range(10):
        await janitor.round()
        house.clock.time += HOUR


@pytest.mark.parametrize("callback_url", [None, URL])
async def test_rows_and_images_go_when_retention_is_over(
    house: House, caplog: pytest.LogCaptureFixture, callback_url: str | None
) -> None:
    ids = await lost_segment(house, callback_url=callback_url)
    house.clock.time += 4 * DAY
    await remove_all(house)
    assert [await house.traces(job_id) for job_id in ids] == [{"image", "row"}] * 2
    house.clock.time += 5 * DAY
    with caplog.at_level(logging.ERROR):
        await remove_all(house)
    assert [await house.traces(job_id) for job_id in ids] == [set()] * 2
    said = [(each.message, each.__dict__["jobs"]) for each in caplog.records]
    assert said in ([("segment is lost", 2)], [("segment is lost", 1)] * 2)
    assert [refs async for refs in house.segments.stored()] == []


async def test_one_whose_callback_was_asked_for_again_goes_as_well(house: House) -> None:
    """Nobody can send it: what was to be sent was in the segment."""
    job_id, _ = await lost_segment(house, callback_url=URL)
    await house.hot_jobs.heat(job_id, house.clock())
    await house.read_model.unsettled.reopen(job_id)
    asked = Event(new_id(), job_id, 2, time=house.clock(), data=RedeliveryRequested())
    await house.deliveries.append(asked, expected=0)
    house.clock.time += 9 * DAY
    await remove_all(house)
    assert await house.traces(job_id) == set()


async def test_what_the_log_has_still_is_archived_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object is lost before the log was purged of what it has."""
    job_id = await house.job()
    await house.project()
    before = await house.history.read(job_id)
    house.clock.time += 2 * HOUR
    house.log.purge_error = LogUnavailable()
    with pytest.raises(LogUnavailable):
        await house.archiver().round()
    house.log.recover()
    [lost] = [ref async for ref in house.archive.segments()]
    await house.archive.delete(lost)
    house.clock.time += 2 * HOUR
    archiver = house.archiver()
    for _ in range(3):
        await archiver.round()
        house.clock.time += 2 * HOUR
    assert await house.log.read(job_id) == []
    assert await house.history.read(job_id) == before
    assert await house.segments.in_state(SegmentState.PURGING) == []
