"""A rebuild of an archive that is not of the same moment as the table of its segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from actors.archiving import Archiving, open_archive
from actors.upkeep.orphans import Orphans
from events.archive.archive import SegmentRef
from events.archive.segment import ArchivedJob, pack
from events.errors import DatabaseUnavailable
from events.ids import new_id
from events.store.maintenance.rebuild import Rebuild
from events.store.tables import CHECKPOINTS
from events.types import Erased
from events.wire.cloud_events import decode
from storage.images import ImageNotFound
from tests.support.operations.installation import NOW, Installation
from tests.support.operations.rebuild import rebuild


def archiving_of(installation: Installation) -> Archiving:
    return open_archive(installation.database, installation.images, now=lambda: NOW)


async def lose_tables(installation: Installation, *others: str) -> None:
    async with installation.database.write() as connection:
        for table in ("jobs", "images", "erasures", "segments", *others):
            await connection.execute(sa.text(f"DELETE FROM {table}"))
        await connection.execute(sa.update(CHECKPOINTS).values(seq=0))


async def copies(installation: Installation, job_id: str) -> list[ArchivedJob]:
    archive = installation.places.archive
    refs = [ref async for ref in archive.segments()]
    return [job for ref in refs async for job in archive.scan(ref) if job.job_id == job_id]


async def test_a_job_that_two_segments_have_is_in_one_afterwards(
    installation: Installation,
) -> None:
    """A backup was taken during a merge. An erasure would rewrite one of the two."""
    job_id = installation.ids["completed"]
    ref = await installation.archive(job_id)
    other = SegmentRef(ref.day, ref.partition, new_id())
    [job] = await copies(installation, job_id)
    await installation.places.archive.write(other, list(pack([job])))
    await rebuild(installation)
    assert await copies(installation, job_id) == [job]
    await archiving_of(installation).writer.erase(job_id)
    assert await copies(installation, job_id) == []


async def test_an_erased_job_does_not_come_back_from_an_older_segment(
    installation: Installation,
) -> None:
    """The table was lost, and with it that one of the two takes the place of the other."""
    job_id = installation.ids["cancelled"]
    ref = await installation.archive(job_id)
    [job] = await copies(installation, job_id)
    erased = installation.ids["erased"]
    last = (await installation.log.stored([erased]))[erased][-1]
    payload = last.payload.replace(erased.encode(), job_id.encode())
    only = ArchivedJob(job_id, (type(last)(last.sequence, payload),))
    later = SegmentRef(ref.day, ref.partition, new_id())
    await installation.places.archive.write(later, list(pack([only])))
    await lose_tables(installation)
    await rebuild(installation)
    [left] = await copies(installation, job_id)
    assert [type(decode(event.payload).data) for event in left.events] == [Erased]
    assert job.events[0].payload not in {event.payload for event in left.events}


async def test_segments_that_are_not_there_do_not_hinder_merges(
    installation: Installation,
) -> None:
    """The database of a backup is older than its files."""
    ref = await installation.archive(installation.ids["completed"])
    lost = SegmentRef(ref.day, ref.partition, new_id())
    segments = installation.places.segments
    await segments.add(lost, jobs=1, size_bytes=9, now=NOW)
    await rebuild(installation)
    assert [each for each, _ in await segments.small(1024**2, limit=9)] == [ref]


async def test_images_of_archived_jobs_stay_while_no_row_names_them(
    installation: Installation,
) -> None:
    """The tables were lost, and a rebuild that knew the segments already has died."""
    await installation.archive(installation.ids["completed"])
    [key, *_] = [row["storage_key"] for row in await image_rows(installation)]
    upload = await installation.upload()
    await lose_tables(installation, "uploads")
    tables = Rebuild(installation.database)

    async def dying(*_: Any, **__: Any) -> bool:
        raise DatabaseUnavailable

    tables.swap = dying  # type: ignore[method-assign] # after everything was read
    with pytest.raises(DatabaseUnavailable):
        await rebuild(installation, tables=tables)
    await sweep(installation)
    assert [await has_file(installation, each) for each in (key, upload)] == [True, True]
    await rebuild(installation)
    await sweep(installation)
    assert [await has_file(installation, each) for each in (key, upload)] == [True, False]


async def image_rows(installation: Installation) -> Sequence[Mapping[str, Any]]:
    job_id = installation.ids["completed"]
    return (await installation.places.rows.jobs([job_id]))[job_id].images


async def has_file(installation: Installation, key: str) -> bool:
    with suppress(ImageNotFound):
        return bool(await installation.images.get(key))
    return False


async def sweep(installation: Installation) -> None:
    """A walk through all files, long after the last job that may name an upload has ended."""
    now = NOW
    orphans = Orphans(
        log=installation.log,
        read_model=installation.read_model,
        uploads=installation.uploads,
        segments=installation.places.segments,
        archive=installation.places.archive,
        images=installation.images,
        grace_s=3600,
        longest_job_s=3600,
        now=lambda: now,
    )
    for _ in range(6):
        await orphans.sweep(500)
        now += timedelta(hours=1)


async def test_archived_jobs_are_settled(installation: Installation) -> None:
    """Their deliveries have ended, or they would not be there: nobody reads them again."""
    job_id = installation.ids["completed"]
    await installation.archive(job_id)
    await lose_tables(installation)
    await rebuild(installation)
    unsettled = await installation.read_model.unsettled.page(after=0, limit=9)
    assert job_id not in [job.id for job in unsettled]
