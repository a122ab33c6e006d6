"""A job's history is one, wherever its parts are."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from events.archive.archive import Archive, SegmentRef
from events.archive.history import History
from events.archive.segment import ArchivedJob, pack
from events.decisions import Cancel, Erase, Submit
from events.delivery import RequestRedelivery
from events.errors import DatabaseUnavailable, HistoryGone
from events.ids import new_id
from events.job import Job
from events.log import Conflict, DeliveryWriter, JobWriter, StoredEvent, utc_now
from events.memory.log import MemoryLog
from events.types import CallbackDelivered, Cancelled, Event
from events.wire.cloud_events import encode
from storage.images import ImageNotFound, ImageStore
from tests.support.events import submitted


class Shelf:
    """A log of jobs and one of deliveries, and one segment that a test moves jobs to."""

    def __init__(self, folder: Path) -> None:
        self.log, self.delivery_log = MemoryLog(), MemoryLog()
        self.archive = Archive(ImageStore(folder.as_uri()))
        self.refs: list[SegmentRef] = []
        """Where the next look-ups find the job; the last one stays."""
        self.history = History(
            log=self.log, deliveries=self.delivery_log, archive=self.archive, find=self._find
        )
        self.writer = JobWriter(self.history.log)
        self.delivery_writer = DeliveryWriter(self.history.delivery_log)

    async def _find(self, job_id: str) -> SegmentRef | None:
        if not self.refs:
            return None
        return self.refs.pop(0) if len(self.refs) > 1 else self.refs[0]

    async def ended_job(self) -> Job:
        job_id = new_id()
        outcome = await self.writer.submit(job_id, Submit(submitted()))
        assert outcome.job is not None
        outcome = await self.writer.execute(Cancel(), outcome.job)
        delivered = CallbackDelivered(attempt=1)
        event = Event(id=new_id(), job_id=job_id, version=1, time=utc_now(), data=delivered)
        await self.delivery_log.append(event, expected=0)
        assert outcome.job is not None
        return outcome.job

    async def archive_job(self, job: Job) -> None:
        parts = [
            tuple(StoredEvent(event.position, encode(event)) for event in await log.read(job.id))
            for log in (self.log, self.delivery_log)
        ]
        self.refs = [SegmentRef(date(2026, 3, 1), 1, new_id())]
        await self.archive.write(self.refs[0], list(pack([ArchivedJob(job.id, *parts)])))
        await self.log.purge(job.id)
        await self.delivery_log.purge(job.id)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


async def test_an_archived_job_reads_as_before(shelf: Shelf) -> None:
    job = await shelf.ended_job()
    before = await shelf.history.read(job.id), await shelf.history.deliveries(job.id)
    await shelf.archive_job(job)
    assert (await shelf.history.read(job.id), await shelf.history.deliveries(job.id)) == before
    assert await shelf.writer.load(job.id) == job


async def test_an_unknown_job_has_no_history(shelf: Shelf) -> None:
    assert await shelf.history.read(new_id()) == []
    assert await shelf.history.deliveries(new_id()) == []


async def test_a_job_in_the_log_needs_no_look_up(shelf: Shelf) -> None:
    job = await shelf.ended_job()

    async def find(job_id: str) -> SegmentRef | None:
        raise DatabaseUnavailable

    history = History(
        log=shelf.log, deliveries=shelf.delivery_log, archive=shelf.archive, find=find
    )
    assert len(await history.read(job.id)) == 2
    with pytest.raises(DatabaseUnavailable):
        await history.read(new_id())


async def test_what_was_written_after_the_move_is_joined(shelf: Shelf) -> None:
    job = await shelf.ended_job()
    await shelf.archive_job(job)
    delivery = await shelf.delivery_writer.load(job.id)
    await shelf.delivery_writer.execute(RequestRedelivery(), job, delivery)
    assert [event.version for event in await shelf.history.deliveries(job.id)] == [1, 2]
    assert not (await shelf.delivery_writer.load(job.id)).ended


async def test_an_archived_job_is_erased_on_the_log(shelf: Shelf) -> None:
    job = await shelf.ended_job()
    await shelf.archive_job(job)
    erased = (await shelf.writer.execute(Erase(), job)).job
    assert erased is not None
    assert erased.erased
    assert await shelf.writer.load(job.id) == erased
    again = (await shelf.writer.execute(Erase(), job)).job
    assert again == erased


async def test_a_writer_whose_job_is_nowhere_is_refused(shelf: Shelf) -> None:
    job = await shelf.ended_job()
    await shelf.log.purge(job.id)
    event = Event(id=new_id(), job_id=job.id, version=3, time=utc_now(), data=Cancelled())
    with pytest.raises(HistoryGone):
        await shelf.history.log.append(event, expected=job.position)


async def test_of_two_writers_on_an_archived_job_one_wins(shelf: Shelf) -> None:
    job = await shelf.ended_job()
    await shelf.archive_job(job)
    for lost in (False, True):
        event = Event(id=new_id(), job_id=job.id, version=3, time=utc_now(), data=Cancelled())
        outcome = await shelf.history.log.append(event, expected=job.position)
        assert isinstance(outcome, Conflict) is lost


async def test_a_segment_that_was_rewritten_meanwhile_is_looked_up_again(shelf: Shelf) -> None:
    job = await shelf.ended_job()
    await shelf.archive_job(job)
    gone = SegmentRef(date(2026, 3, 1), 1, new_id())
    shelf.refs = [gone, gone, *shelf.refs]
    assert len(await shelf.history.read(job.id)) == 2


async def test_a_segment_that_is_lost_is_told(shelf: Shelf) -> None:
    job = await shelf.ended_job()
    await shelf.archive_job(job)
    await shelf.archive.delete(shelf.refs[0])
    with pytest.raises(ImageNotFound):
        await shelf.history.read(job.id)
