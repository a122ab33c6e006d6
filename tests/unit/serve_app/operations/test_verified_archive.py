"""What `darkroom verify` tells of the archive, each time exactly that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa

from events.archive.archive import SegmentRef
from events.archive.segment import ArchivedJob, pack
from events.ids import new_id
from events.log import StoredEvent
from events.store.archiving.segments import SegmentState
from events.store.tables import JOBS, SEGMENTS
from events.types import Event, RedeliveryRequested
from tests.support.operations.installation import NOW, Installation


async def write(ref: SegmentRef, jobs: Sequence[ArchivedJob], installation: Installation) -> int:
    return await installation.places.archive.write(ref, list(pack(jobs)))


async def archived(installation: Installation, ref: SegmentRef, job_id: str) -> ArchivedJob:
    job = await installation.places.archive.read(ref, job_id)
    assert job is not None
    return job


async def test_archived_jobs_of_every_kind_agree(installation: Installation) -> None:
    for kind in ("completed", "cancelled", "erased"):
        await installation.archive(installation.ids[kind])
    assert await installation.disagreements(digests=True) == []


async def test_a_job_that_is_still_in_the_log_as_well(installation: Installation) -> None:
    """As between two steps of the archiver."""
    job_id = installation.ids["completed"]
    kept = await installation.log.stored([job_id]), await installation.deliveries.stored([job_id])
    await installation.archive(job_id)
    installation.log_contents.instead |= kept[0]
    installation.delivery_contents.instead |= kept[1]
    assert await installation.disagreements() == []


async def test_a_segment_that_is_not_what_was_written(installation: Installation) -> None:
    ref = await installation.archive(installation.ids["completed"])
    data = bytearray(await installation.images.get(ref.key))
    data[-9] ^= 1
    await installation.images.put(ref.key, bytes(data))
    [found] = [each async for each in installation.verification().run()]
    assert (found.kind, found.file) == ("segment_damaged", ref.key)


async def test_a_segment_that_is_gone(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    ref = await installation.archive(job_id)
    await installation.images.delete(ref.key)
    assert await installation.disagreements() == [("segment_missing", job_id)]


async def test_a_row_that_names_an_unknown_segment_or_another(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    await installation.archive(job_id)
    other = await installation.archive(installation.ids["cancelled"])
    for segment in (new_id(), other.id):
        mine = sa.update(JOBS).where(JOBS.c.id == job_id)
        await installation.database.execute(mine.values(segment=segment))
        assert await installation.disagreements() == [("segment_missing", job_id)]


async def test_a_row_of_an_archived_job_that_names_none(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    await installation.archive(job_id)
    mine = sa.update(JOBS).where(JOBS.c.id == job_id)
    await installation.database.execute(mine.values(segment=None))
    assert await installation.disagreements() == [("row_without_events", job_id)]


async def test_a_job_in_two_segments(installation: Installation) -> None:
    """With the same events it is what a writer that died has left; with others it is not."""
    job_id = installation.ids["completed"]
    ref = await installation.archive(job_id)
    job = await archived(installation, ref, job_id)
    other = replace(ref, id=new_id())
    await write(other, [job], installation)
    assert await installation.disagreements() == []
    await write(other, [replace(job, events=job.events[:-1])], installation)
    assert await installation.disagreements() == [("archived_twice", job_id)]
    await installation.places.segments.add(other, jobs=1, size_bytes=1, now=NOW)
    doom = sa.update(SEGMENTS).where(SEGMENTS.c.id == other.id)
    await installation.database.execute(doom.values(state=SegmentState.DOOMED, moved_to=ref.id))
    assert await installation.disagreements() == []


async def test_an_archived_job_without_a_row(installation: Installation) -> None:
    job_id = installation.ids["cancelled"]
    await installation.archive(job_id)
    await installation.database.execute(sa.delete(JOBS).where(JOBS.c.id == job_id))
    assert await installation.disagreements() == [("events_without_row", job_id)]


@pytest.mark.parametrize(("column", "value"), [("owner", "bob"), ("state", "{}"), ("log_bytes", 9)])
async def test_a_row_that_is_not_what_the_archive_says(
    installation: Installation, column: str, value: object
) -> None:
    job_id = installation.ids["completed"]
    await installation.archive(job_id)
    mine = sa.update(JOBS).where(JOBS.c.id == job_id)
    await installation.database.execute(mine.values({column: value}))
    assert await installation.disagreements() == [("row_differs", job_id)]


async def test_archived_events_that_have_a_gap_or_are_none(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    ref = await installation.archive(job_id)
    job = await archived(installation, ref, job_id)
    first, *rest = job.events
    await write(ref, [replace(job, events=(first, *rest[1:]))], installation)
    assert await installation.disagreements() == [("version_gap", job_id)]
    broken = StoredEvent(first.sequence, b"no event")
    await write(ref, [replace(job, events=(broken, *rest))], installation)
    assert await installation.disagreements() == [("unreadable_event", job_id)]


async def test_a_job_that_was_archived_too_early(installation: Installation) -> None:
    running, failed = installation.ids["running"], installation.ids["failed"]
    await installation.queue.remove("default", 3, running)
    await installation.archive(running)
    assert await installation.disagreements() == [("open_without_entry", running)]
    await installation.queue.add("default", 3, running)
    async with installation.callbacks.due(most_held=9, hold_s=9) as reader:
        await (await reader.next(most=9, timeout_s=1))[0].ack()
    await installation.archive(failed)
    assert await installation.disagreements() == [("callback_lost", failed)]


async def test_a_file_of_an_archived_job_that_is_missing(installation: Installation) -> None:
    job_id = installation.ids["completed"]
    await installation.archive(job_id)
    await installation.images.delete(f"{job_id}/1/0.png")
    assert await installation.disagreements() == [("file_missing", job_id)]


async def test_a_callback_of_an_archived_job_that_was_asked_for_once_more(
    installation: Installation,
) -> None:
    job_id = installation.ids["completed"]
    await installation.archive(job_id)
    again = Event(new_id(), job_id, 3, NOW, RedeliveryRequested())
    await installation.deliveries.append(again, expected=0)
    mine = sa.update(JOBS).where(JOBS.c.id == job_id)
    await installation.database.execute(mine.values(archived_at=None, log_bytes=0))
    await installation.callbacks.add(job_id)
    assert await installation.disagreements() == []
