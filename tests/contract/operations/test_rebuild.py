"""The read model, built anew beside the one in use, on both databases: SQLite and Postgres."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sqlalchemy as sa

from events.archive.archive import SegmentRef
from events.errors import SegmentBroken
from events.ids import new_id
from events.log import StoredEvent
from events.store.archiving.segments import Segments
from events.store.database import Database
from events.store.maintenance.rebuild import Rebuild
from events.store.tables import CHECKPOINTS, ERASURES, IMAGES, JOBS
from events.types import Cancelled, Completed, RedeliveryRequested
from tests.support.operations.installation import NOW, Installation
from tests.support.operations.rebuild import rebuild


async def rows(database: Database) -> list[list[Mapping[str, Any]]]:
    tables = (CHECKPOINTS, JOBS, IMAGES, ERASURES)
    found = [await database.fetch(sa.select(each).order_by(*each.primary_key)) for each in tables]
    return [[dict(row._mapping) for row in some] for some in found]


async def table_names(database: Database) -> set[str]:
    async with database.write() as connection:
        return set(await connection.run_sync(lambda sync: sa.inspect(sync).get_table_names()))


async def test_jobs_of_every_kind_are_as_they_were_projected(installation: Installation) -> None:
    for kind in ("completed", "cancelled", "erased"):
        await installation.archive(installation.ids[kind])
    before = await rows(installation.database)
    rebuilt = (await rebuild(installation)).rebuilt
    assert await rows(installation.database) == before
    assert (rebuilt.from_log, rebuilt.from_archive, rebuilt.segments) == (3, 3, 3)


async def test_it_stops_at_what_cannot_be_read_as_the_projection_does(
    installation: Installation,
) -> None:
    job_id = installation.ids["completed"]
    stored = await installation.log_contents.of(job_id)
    instead = (*stored[:2], StoredEvent(stored[2].sequence, b"no event"), *stored[3:])
    installation.log_contents.instead[job_id] = instead
    await rebuild(installation)
    job = await installation.read_model.job(job_id)
    assert job is not None
    assert job.version == 2
    [stop] = await installation.read_model.blocked.stops(limit=9)
    assert (stop.job_id, stop.position) == (job_id, stored[2].sequence)
    installation.log_contents.instead.clear()
    await rebuild(installation)
    assert await installation.read_model.blocked.count() == 0


async def test_it_may_be_built_again_and_again(installation: Installation) -> None:
    before = await rows(installation.database)
    names = await table_names(installation.database)
    for _ in range(3):
        await rebuild(installation)
        await installation.database.prepare()
        assert await rows(installation.database) == before
        assert await table_names(installation.database) == names
        async with installation.database.write() as connection:
            indexes = await connection.run_sync(lambda sync: sa.inspect(sync).get_indexes("jobs"))
        assert len(indexes) == len(JOBS.indexes)


async def test_the_projection_goes_on_behind_it(installation: Installation) -> None:
    await rebuild(installation)
    await installation.append(installation.ids["running"], Completed(images=1))
    job_id = await installation.job()
    await installation.project()
    for each in (installation.ids["running"], job_id):
        assert await installation.read_model.job(each) == await installation.load(each)


async def test_wrong_missing_and_surplus_rows_are_mended(installation: Installation) -> None:
    database, ids = installation.database, installation.ids
    await installation.archive(ids["cancelled"])
    before = await rows(database)
    await database.execute(sa.update(JOBS).values(owner="mallory", status=7))
    await database.execute(sa.delete(JOBS).where(JOBS.c.id.in_([ids["failed"], ids["cancelled"]])))
    await database.execute(sa.delete(IMAGES))
    await database.execute(sa.delete(ERASURES))
    await rebuild(installation)
    assert await rows(database) == before


async def test_a_row_of_a_job_without_events_goes(installation: Installation) -> None:
    job_id = installation.ids["cancelled"]
    await installation.log.purge(job_id)
    await rebuild(installation)
    assert await installation.read_model.job(job_id) is None


async def test_a_database_that_is_new_gets_everything(installation: Installation) -> None:
    """Also what only the table of segments said: which segment has a job."""
    database, job_id = installation.database, installation.ids["completed"]
    ref = await installation.archive(job_id)
    before = await rows(database)
    async with database.write() as connection:
        for table in ("jobs", "images", "erasures", "segments"):
            await connection.execute(sa.text(f"DELETE FROM {table}"))
        await connection.execute(sa.update(CHECKPOINTS).values(seq=0))
    await rebuild(installation)
    assert await rows(database) == before
    assert await Segments(database).find(job_id) == ref


async def test_an_archived_job_with_new_deliveries_stays_in_the_eye_of_the_archiver(
    installation: Installation,
) -> None:
    database, job_id = installation.database, installation.ids["completed"]
    await installation.archive(job_id)
    await installation.deliver(job_id, RedeliveryRequested())
    await database.execute(sa.delete(JOBS))
    await rebuild(installation)
    [row] = await database.fetch(sa.select(JOBS).where(JOBS.c.id == job_id))
    assert (row.archived_at, row.hot_since) == (None, NOW)


async def test_what_happens_meanwhile_is_in_it(installation: Installation) -> None:
    """Jobs come, end, are archived, erased and removed; the projection runs on."""
    ids, calls = installation.ids, 0

    async def meanwhile() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await installation.append(ids["running"], Completed(images=1))
            ids["new"] = await installation.job(Cancelled())
            await installation.project()
            await installation.archive(ids["new"])
            await installation.archive(ids["cancelled"])
            await installation.append(ids["completed"], installation.erased())
            job = await installation.load(ids["completed"])
            await installation.read_model.erase(job)
            await installation.log.purge(ids["completed"], keep=1)
        if calls == 2:
            await installation.log.purge(ids["failed"])
            failed = await installation.read_model.job(ids["failed"])
            assert failed is not None
            await installation.read_model.remove({failed.id: failed.position})
            await installation.project()

    await rebuild(installation, meanwhile)
    assert calls > 1
    await installation.project()
    assert await installation.read_model.job(ids["failed"]) is None
    for name in ("running", "waiting", "completed"):
        expected = await installation.load(ids[name])
        assert await installation.read_model.job(ids[name]) == expected
    for name in ("new", "cancelled"):
        assert await installation.read_model.job(ids[name]) is not None
        assert await Segments(installation.database).find(ids[name]) is not None


async def test_a_job_that_is_archived_right_before_the_swap_is_known_there(
    installation: Installation,
) -> None:
    job_id, tables = installation.ids["cancelled"], Rebuild(installation.database)
    swap = tables.swap

    async def archive_and_swap(position: int, *, log_end: int) -> bool:
        await installation.archive(job_id)
        return await swap(position, log_end=log_end)

    tables.swap = archive_and_swap  # type: ignore[method-assign] # between two steps of the run
    await rebuild(installation, tables=tables)
    assert await Segments(installation.database).find(job_id) is not None


async def test_an_erasure_right_before_the_swap_stays(installation: Installation) -> None:
    job_id, tables = installation.ids["completed"], Rebuild(installation.database)
    swap = tables.swap

    async def erase_and_swap(position: int, *, log_end: int) -> bool:
        if not (await installation.load(job_id)).erased:
            await installation.append(job_id, installation.erased())
            await installation.read_model.erase(await installation.load(job_id))
        return await swap(position, log_end=log_end)

    tables.swap = erase_and_swap  # type: ignore[method-assign] # between two steps of the run
    await rebuild(installation, tables=tables)
    job = await installation.read_model.job(job_id)
    assert job is not None
    assert job.erased
    assert await installation.read_model.image_keys([job_id]) == set()


async def test_tables_that_are_behind_are_not_swapped_in(installation: Installation) -> None:
    tables = Rebuild(installation.database)
    before = await rows(installation.database)
    await tables.begin()
    at = await installation.read_model.checkpoint()
    assert not await tables.swap(at - 1, log_end=at)
    assert await rows(installation.database) == before
    assert await tables.swap(at, log_end=at)


async def test_a_read_model_that_is_ahead_of_the_log_is_taken_back(
    installation: Installation,
) -> None:
    """As after a log was restored that is older than the database."""
    at = await installation.read_model.checkpoint()
    await installation.database.execute(sa.update(CHECKPOINTS).values(seq=at + 100))
    await rebuild(installation)
    assert await installation.read_model.checkpoint() == at


async def test_one_that_dies_leaves_the_old_one_and_nothing_in_the_way(
    installation: Installation,
) -> None:
    before = await rows(installation.database)
    await archive_broken(installation)
    with pytest.raises(SegmentBroken):
        await rebuild(installation)
    assert await rows(installation.database) == before
    assert "jobs_rebuilt" in await table_names(installation.database)
    await installation.images.delete_folder("archive")
    await rebuild(installation)
    assert await rows(installation.database) == before
    assert {"jobs_rebuilt", "jobs_replaced"}.isdisjoint(await table_names(installation.database))


async def archive_broken(installation: Installation) -> None:
    ref = SegmentRef(NOW.date(), 1, new_id())
    await installation.images.put(ref.key, b"broken")
