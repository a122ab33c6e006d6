"""What archiver and janitor do at a time, and how long they may be silent, is for the settings."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from events.ids import new_id, partition_of
from events.store.archiving.segments import SegmentState
from events.store.leases import Leases
from storage.images import ImageStoreUnavailable
from tests.support.upkeep import HOUR, House


async def cooled_jobs(house: House, count: int) -> list[str]:
    """Of one partition, which may leave the log."""
    ids: list[str] = []
    while len(ids) < count:
        job_id = new_id()
        if partition_of(job_id) == 3:
            ids.append(await house.job(job_id=job_id))
    await house.project()
    house.clock.time += 2 * HOUR
    return ids


async def jobs_in_segments(house: House) -> list[int]:
    refs = [ref async for ref in house.archive.segments()]
    return sorted([(await house.archive.verify(ref)).jobs for ref in refs])


@pytest.mark.parametrize(
    ("limit", "expected"),
    [({}, [5]), ({"log_batch_jobs": 2}, [1, 2, 2]), ({"log_batch_bytes": 1}, [1] * 5)],
)
async def test_so_many_jobs_go_to_the_archive_together(
    house: House, limit: dict[str, int], expected: list[int]
) -> None:
    await cooled_jobs(house, 5)
    await house.archiver(**limit).round()
    assert await jobs_in_segments(house) == expected


async def test_so_many_jobs_are_purged_at_once(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cooled_jobs(house, 5)
    purge, now, most = house.log.purge, 0, 0

    async def counted(*args: Any, **named: Any) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        await purge(*args, **named)
        now -= 1

    monkeypatch.setattr(house.log, "purge", counted)
    monkeypatch.setattr(house.deliveries, "purge", counted)
    await house.archiver(log_purges_at_once=3).round()
    assert most == 3


async def test_a_writer_that_was_silent_for_the_lease_is_given_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cooled_jobs(house, 1)

    async def refuse(*_: Any) -> int:
        raise ImageStoreUnavailable

    with monkeypatch.context() as patch:
        patch.setattr(house.archive, "write", refuse)
        with pytest.raises(ImageStoreUnavailable):
            await house.archiver().round()
    [left] = await house.segments.in_state(SegmentState.WRITING)
    for minutes, is_given_up in ((8, False), (3, True)):
        house.clock.time += timedelta(minutes=minutes)
        await house.archiver(upkeep_lease_s=600).round()
        known = await house.segments.known([left])
        assert (left.id not in known) == is_given_up


@pytest.mark.parametrize("role", ["janitor", "archiver"])
async def test_another_one_takes_over_after_the_lease(
    house: House, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    asked: list[float] = []

    async def acquire(_: Leases, __: str, ___: str, *, ttl_s: float) -> bool:
        asked.append(ttl_s)
        raise asyncio.CancelledError

    monkeypatch.setattr(Leases, "acquire", acquire)
    with pytest.raises(asyncio.CancelledError):
        await getattr(house, role)(upkeep_lease_s=7).run()
    assert asked == [7]
