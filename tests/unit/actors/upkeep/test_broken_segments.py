"""A segment that is broken, or lacks what a row says that it has, holds up nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from events.archive.archive import SegmentRef
from events.errors import SegmentBroken
from events.ids import partition_of
from events.store.tables import JOBS
from tests.support.upkeep import DAY, HOUR, House


async def archived_job(house: House, **named: Any) -> str:
    job_id = await house.job(**named)
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await house.log.read(job_id) == []
    return job_id


async def broken(*_: Any) -> Any:
    raise SegmentBroken("Its blocks do not have the digest that its index says.")


async def objects(house: House) -> list[SegmentRef]:
    return [ref async for ref in house.archive.segments()]


async def test_other_jobs_leave_the_log(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    again = await archived_job(house)
    await house.hot_jobs.heat(again, house.clock())
    other = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    monkeypatch.setattr(house.archive, "blocks", broken)
    await house.archiver().round()
    assert await house.log.read(other) == []


async def test_others_of_its_partition_are_erased(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await archived_job(house)
    monkeypatch.setattr(house.archive, "blocks", broken)
    with pytest.raises(SegmentBroken):
        await house.archive_writer.merge(await objects(house))
    await house.archive_writer.recover(before=house.clock() - DAY)
    assert await house.segments.is_settled(partition_of(job_id))


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_job_that_its_segment_lacks_is_archived_from_the_log(
    house: House, *, is_known: bool
) -> None:
    """A rebuild may have read the segment before an erasure, or retention removed it meanwhile."""
    ref = await house.segments.find(await archived_job(house))
    assert ref is not None
    job_id = await house.job()
    await house.project()
    segment = ref.id if is_known else "unknown"
    await house.database.execute(sa.update(JOBS).where(JOBS.c.id == job_id).values(segment=segment))
    before = await house.history.read(job_id)
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    assert await house.log.read(job_id) == []
    assert await house.history.read(job_id) == before
