"""Objects of the archive that the table of segments does not know, and writers that stall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from events.archive.archive import SegmentRef
from events.store.database import Database
from tests.support.upkeep import DAY, HOUR, House


async def objects(house: House) -> list[SegmentRef]:
    return [ref async for ref in house.archive.segments()]


async def test_what_an_older_database_knows_nothing_of_is_not_swept(
    house: House, tmp_path: Path
) -> None:
    """Restored from a copy of before the job was archived. The log has it no more."""
    job_id = await house.job()
    await house.project()
    await house.database.copy_to(tmp_path / "older.sqlite3")
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    before = await objects(house)
    await sweep(house, tmp_path / "older.sqlite3")
    assert await objects(house) == before
    assert len(await house.history.read(job_id)) == 5


async def test_what_is_in_a_segment_of_another_name_by_now_is_not_swept(
    house: House, tmp_path: Path
) -> None:
    """Restored from a copy of before the segment was written again."""
    job_id = await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    await house.archiver().round()
    await house.database.copy_to(tmp_path / "older.sqlite3")
    await house.archive_writer.merge(await objects(house))
    before = await objects(house)
    await sweep(house, tmp_path / "older.sqlite3")
    assert await objects(house) == before
    assert len(await house.history.read(job_id)) == 5


async def sweep(house: House, database: Path) -> None:
    """By a janitor that has this database."""
    older = Database(f"sqlite+aiosqlite:///{database}")
    house.clock.time += 300 * DAY  # the files are as old as the test
    clock, log, deliveries = house.clock, house.log, house.deliveries
    janitor = House(house.folder, older, clock, log, deliveries).janitor(retention_days=0)
    try:
        for _ in range(5):
            await janitor.round()
    finally:
        await older.close()


async def test_a_writer_that_was_given_up_removes_what_it_stores_late(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has may have been erased since."""
    await house.job()
    await house.project()
    house.clock.time += 2 * HOUR
    write = house.archive.write

    async def stalled(*args: Any) -> int:
        house.clock.time += HOUR
        await house.archive_writer.recover(before=house.clock())
        return await write(*args)

    with monkeypatch.context() as patch:
        patch.setattr(house.archive, "write", stalled)
        await house.archiver().round()
    assert await objects(house) == []
