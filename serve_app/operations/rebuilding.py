"""Builds the read model anew from log and archive, while the service runs.

Log first, then archive, then what the log got meanwhile: what leaves the log on the way is in a
segment by then. The last look at the archive comes after the last one at the log, so that up to the
position that the new tables claim nothing is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime

from events.archive.archive import SegmentRef
from events.archive.segment import ArchivedJob
from events.log import StoredEvent, utc_now
from events.store.archiving.segments import SegmentState
from events.store.archiving.writer import ArchiveWriter
from events.store.maintenance.rebuild import Rebuild
from events.streams.log_streams import LogPlace, moved
from events.types import Erased, Event
from events.wire.cloud_events import MalformedEvent, decode, decode_all
from serve_app.operations.places import Places, archived_in
from storage.images import ImageNotFound

_BATCH = 250
_MOST_SWAPS = 100
_STORED = (SegmentState.PURGING, SegmentState.WHOLE)


class RebuildNotDone(Exception):
    """The old read model is in use."""


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild has read so far."""

    from_log: int = 0
    """Jobs; one that changed meanwhile is read again, and counts again."""
    from_archive: int = 0
    segments: int = 0


class Rebuilding:
    def __init__(
        self,
        places: Places,
        tables: Rebuild,
        *,
        writer: ArchiveWriter,
        on_batch: Callable[[], Awaitable[None]],
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`on_batch` is called after every batch of jobs."""
        self._places = places
        self._tables = tables
        self._writer = writer
        self._on_batch = on_batch
        self._now = now
        self._scanned: set[SegmentRef] = set()
        self._copies: dict[tuple[date, int], set[SegmentRef]] = defaultdict(set)
        """By day and partition, segments that have jobs of each other."""
        self.rebuilt = Rebuilt()

    async def run(self) -> None:
        """Raises RebuildNotDone, SegmentBroken, and what the places raise."""
        place = await self._places.log.last_sequence()
        await self._tables.begin()
        async for page in self._places.log.job_ids():
            for start in range(0, len(page), _BATCH):
                await self._read_log(page[start : start + _BATCH])
        await self._swap(place)
        await self._purge_older_copies()
        await self._merge_copies()
        await self._forget_lost_segments()
        await self._drop_what_was_removed()
        await self._tables.finish()

    async def _swap(self, place: LogPlace) -> None:
        for _ in range(_MOST_SWAPS):
            place = await self._follow(place)
            if await self._scan_new_segments():
                continue
            await self._heat()
            log_end = await self._places.log.last_sequence()
            if await self._tables.swap(place, log_end=log_end):
                return
        raise RebuildNotDone("The log grew faster than it was read; try again later.")

    async def _follow(self, place: LogPlace) -> LogPlace:
        """Read the jobs that have events after `place`; up to where there are any."""
        while stored := await self._places.log.following(place):
            await self._read_log({job_id for each in stored if (job_id := _job_id(each))})
            place = moved(place, stored[-1].sequence)
        return place

    async def _read_log(self, job_ids: Collection[str]) -> None:
        stored = await self._places.log.stored(job_ids)
        await self._tables.put(_events(stored))
        self.rebuilt.from_log += len(stored)
        await self._on_batch()

    async def _scan_new_segments(self) -> bool:
        """Read the segments that were not there at the last look; whether there was one."""
        found = [ref async for ref in self._places.archive.segments() if ref not in self._scanned]
        for start in range(0, len(found), _BATCH):
            refs = found[start : start + _BATCH]
            states = await self._places.rows.segment_states([ref.id for ref in refs])
            for ref in refs:
                state = states.get(ref.id, SegmentState.FOUND)
                if state in (SegmentState.FOUND, *_STORED):
                    await self._scan(ref, is_known=state != SegmentState.FOUND)
                self._scanned.add(ref)
        return bool(found)

    async def _scan(self, ref: SegmentRef, *, is_known: bool) -> None:
        """One that was removed meanwhile has nothing, or another one has it."""
        jobs: dict[str, tuple[StoredEvent, ...]] = {}
        count = 0
        with suppress(ImageNotFound):
            async for job in self._places.archive.scan(ref):
                jobs[job.job_id] = job.events
                count += 1
                if len(jobs) == _BATCH:
                    await self._put_archived(ref, jobs)
                    jobs = {}
            await self._put_archived(ref, jobs)
            if not is_known:
                size_bytes = await self._places.images.size(ref.key)
                await self._places.segments.add(
                    ref, jobs=count, size_bytes=size_bytes, now=self._now(), is_whole=False
                )
        self.rebuilt.segments += 1

    async def _put_archived(
        self, ref: SegmentRef, jobs: Mapping[str, Sequence[StoredEvent]]
    ) -> None:
        await self._note_copies(ref, jobs)
        await self._tables.put(_events(jobs), segment=ref.id, archived_at=self._now())
        self.rebuilt.from_archive += len(jobs)
        await self._on_batch()

    async def _note_copies(self, ref: SegmentRef, job_ids: Collection[str]) -> None:
        others = await self._tables.segments_of(job_ids)
        if others:
            place = (ref.day, ref.partition)
            scanned = {each for each in self._scanned if (each.day, each.partition) == place}
            if twice := {each for each in scanned if each.id in others}:
                self._copies[place] |= {ref, *twice}

    async def _purge_older_copies(self) -> None:
        """Take out of the log what the archive has more of: such jobs have ended, and must not run.

        So it is where the log was restored from a backup that is older than the archive.
        """
        places = self._places
        async for page in places.log.job_ids():
            for job_id, archived in (await self._archived(page)).items():
                stored = (await places.log.stored([job_id])).get(job_id, ())
                if _is_older(stored, archived.events) or _is_before_erasure(stored, archived):
                    await places.event_log.purge(job_id, upto=stored[-1].sequence)
        async for page in places.deliveries.job_ids():
            for job_id, archived in (await self._archived(page)).items():
                stored = (await places.deliveries.stored([job_id])).get(job_id, ())
                if _is_older(stored, archived.deliveries):
                    await places.delivery_log.purge(job_id, upto=stored[-1].sequence)

    async def _archived(self, job_ids: Collection[str]) -> dict[str, ArchivedJob]:
        """What the archive has of those of these jobs whose rows name a segment."""
        refs = await self._places.segments.of_jobs(job_ids)
        found = {
            job_id: await archived_in(self._places, ref, job_id) for job_id, ref in refs.items()
        }
        return {job_id: job for job_id, job in found.items() if job is not None}

    async def _merge_copies(self) -> None:
        """Have each job in one segment alone: an erasure rewrites no other.

        A backup that was taken during a merge has a job twice, and so has an archive whose table
        was lost while a segment was written again.
        """
        for refs in self._copies.values():
            states = await self._places.rows.segment_states([ref.id for ref in refs])
            stored = sorted(ref for ref in refs if states.get(ref.id) in _STORED)
            if len(stored) > 1:
                await self._writer.merge(stored)

    async def _forget_lost_segments(self) -> None:
        """As an older database names them. A merge would look for them in vain, again and again."""
        async for refs in self._places.segments.stored():
            lost = [ref for ref in refs if not await self._places.archive.has(ref)]
            await self._places.segments.forget(lost)

    async def _heat(self) -> None:
        """Archived jobs whose callback was asked for once more have deliveries in the log."""
        async for page in self._places.deliveries.job_ids():
            for start in range(0, len(page), _BATCH):
                await self._tables.heat(page[start : start + _BATCH], self._now())

    async def _drop_what_was_removed(self) -> None:
        """Jobs that were removed after they were read, or whose rows had got lost."""
        async for job_ids in self._tables.surplus():
            stored = await self._places.log.stored(job_ids)
            gone = [
                job_id
                for job_id in job_ids
                if job_id not in stored and await self._places.segments.find(job_id) is None
            ]
            await self._tables.remove(gone)


def _is_older(stored: Sequence[StoredEvent], archived: Sequence[StoredEvent]) -> bool:
    """Whether it is how the archived events began."""
    begin = [event.payload for event in archived[: len(stored)]]
    return 0 < len(stored) < len(archived) and [event.payload for event in stored] == begin


def _is_before_erasure(stored: Sequence[StoredEvent], archived: ArchivedJob) -> bool:
    """Whether the job was erased since; the archive has only the event that says so."""
    events = decode_all(archived.events, job_id=archived.job_id)
    if not stored or not events or not isinstance(events[-1].data, Erased):
        return False
    return archived.events[-1].payload not in {event.payload for event in stored}


def _events(stored: Mapping[str, Sequence[StoredEvent]]) -> list[Event]:
    return [
        event
        for job_id, messages in stored.items()
        for event in decode_all(messages, job_id=job_id)
    ]


def _job_id(message: StoredEvent) -> str | None:
    try:
        return decode(message.payload).job_id
    except MalformedEvent:
        return None
