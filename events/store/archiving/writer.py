"""Writes, rewrites and merges segments; a death between any two steps leaves nothing astray.

| step | is                                                                            |
|------|-------------------------------------------------------------------------------|
| 1    | the table says that an object is about to be stored (`writing`)               |
| 2    | what it is made from is looked at once more: nobody changed it                |
| 3    | the object is stored                                                          |
| 4    | in one transaction: nobody changed it still, the segment is valid, the jobs'  |
|      | rows name it, the segments in whose place it comes are `doomed`               |
| 5    | the objects of those are removed                                              |

Whoever erases a job changes its row or dooms its segment first, and asks then whether the table
has a segment of that partition that is `writing` or `doomed`. If it has none, no object has the
job: what is written later fails at step 2. What is left of a writer that died, `recover` removes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from functools import reduce
from heapq import merge
from itertools import groupby
from operator import attrgetter

from events.archive.archive import Archive, SegmentRef
from events.archive.segment import ArchivedJob, PackedBlock, pack, unpack
from events.errors import ArchiveBusy, SegmentBroken
from events.ids import new_id, partition_of
from events.log import utc_now
from events.store.archiving.hot_jobs import HotJob, HotJobs
from events.store.archiving.segments import Segments, SegmentState, Written
from events.types import Erased
from events.wire.cloud_events import decode_stored
from storage.images import ImageNotFound, ImageStoreError

Blocks = list[PackedBlock]

_TRIES = 10
"""How often others may be faster to rewrite a segment before it is left for later."""


class ArchiveWriter:
    """Every method raises DatabaseUnavailable, ImageStoreUnavailable, SegmentBroken."""

    def __init__(
        self,
        *,
        archive: Archive,
        segments: Segments,
        hot_jobs: HotJobs,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._archive = archive
        self._segments = segments
        self._hot_jobs = hot_jobs
        self._now = now

    async def add(
        self, day: date, partition: int, jobs: Mapping[HotJob, ArchivedJob]
    ) -> SegmentRef | None:
        """A new segment with `jobs`; None where somebody changed one of them meanwhile."""
        ref = SegmentRef(day, partition, new_id())

        async def make() -> Blocks | None:
            if not await self._hot_jobs.unchanged(jobs):
                return None
            by_id = sorted(jobs.values(), key=attrgetter("job_id"))
            return await asyncio.to_thread(lambda: list(pack(by_id)))

        return ref if await self._write(ref, make, archived=list(jobs)) else None

    async def update(
        self, ref: SegmentRef, jobs: Mapping[HotJob, ArchivedJob]
    ) -> SegmentRef | None:
        """Put these jobs in the place of what the segment has of them; see `add`."""
        changes = {job.job_id: job for job in jobs.values()}

        async def change(sources: list[Blocks]) -> Blocks | None:
            if not await self._hot_jobs.unchanged(jobs):
                return None
            return await asyncio.to_thread(_with, sources[0], changes)

        return await self._replace([ref], change, archived=list(jobs))

    async def merge(self, refs: Sequence[SegmentRef]) -> SegmentRef | None:
        """One segment in the place of several of one day and partition; see `add`."""

        async def change(sources: list[Blocks]) -> Blocks:
            return await asyncio.to_thread(_merged, sources)

        return await self._replace(refs, change)

    async def erase(self, job_id: str) -> None:
        """Leave nothing of a job whose `Erased` is stored, but that event.

        Raises ArchiveBusy where an object may have it still.
        """
        if not await self._erased(job_id):
            raise ArchiveBusy
        partition = partition_of(job_id)
        await self._remove_doomed(partition)
        if not await self._segments.is_settled(partition):
            raise ArchiveBusy

    async def recover(self, *, before: datetime) -> None:
        """Remove what is left of writers that began before this time, and what is doomed."""
        for ref in await self._segments.in_state(SegmentState.WRITING, since=before):
            await self._segments.give_up(ref)
        await self._remove_doomed()

    async def _erased(self, job_id: str) -> bool:
        """Rewrite its segment without it; False where others were faster time after time."""

        async def change(sources: list[Blocks]) -> Blocks:
            return await asyncio.to_thread(_with, sources[0], {job_id: None})

        for _ in range(_TRIES):
            ref = await self._segments.find(job_id)
            if ref is None:
                return True
            with suppress(ImageNotFound):  # it was rewritten meanwhile
                found = await self._archive.read(ref, job_id)
                if found is None or _is_erased(found):
                    return True
                if await self._replace([ref], change, forgotten=[job_id]):
                    return True
        return False

    async def _replace(
        self,
        refs: Sequence[SegmentRef],
        change: Callable[[list[Blocks]], Awaitable[Blocks | None]],
        *,
        archived: Sequence[HotJob] = (),
        forgotten: Sequence[str] = (),
    ) -> SegmentRef | None:
        ref = SegmentRef(refs[0].day, refs[0].partition, new_id())

        async def make() -> Blocks | None:
            with suppress(ImageNotFound):  # another one has replaced it
                sources = [await self._archive.blocks(source) for source in refs]
                return await change(sources) if await self._segments.are_stored(refs) else None
            return None

        if not await self._write(ref, make, archived=archived, sources=refs, forgotten=forgotten):
            return None
        await self._remove_doomed(ref.partition)
        return ref

    async def _write(
        self,
        ref: SegmentRef,
        make: Callable[[], Awaitable[Blocks | None]],
        *,
        archived: Sequence[HotJob] = (),
        sources: Sequence[SegmentRef] = (),
        forgotten: Sequence[str] = (),
    ) -> bool:
        """Where it raises, nobody knows how far it came: `recover` finds out."""
        await self._segments.begin(ref, self._now())
        try:
            blocks = await make()
        except (SegmentBroken, ImageStoreError):  # there is no object yet, and nobody waits for it
            await self._segments.give_up(ref)
            raise
        if blocks is not None:
            size_bytes = await self._archive.write(ref, blocks)
            written = Written(
                ref,
                jobs=sum(block.jobs for block in blocks),
                size_bytes=size_bytes,
                archived=archived,
                sources=sources,
                forgotten=forgotten,
            )
            if await self._segments.commit(written, self._now()):
                return True
            await self._archive.delete(ref)  # `recover` may have come before it was stored
        await self._segments.give_up(ref)
        await self._remove_doomed(ref.partition)
        return False

    async def _remove_doomed(self, partition: int | None = None) -> None:
        for ref in await self._segments.in_state(SegmentState.DOOMED, partition=partition):
            await self._archive.delete(ref)
            await self._segments.gone(ref)


def _is_erased(job: ArchivedJob) -> bool:
    """Whether the archive has only the event that says so."""
    if job.deliveries or len(job.events) != 1:
        return False
    [only] = job.events
    event = decode_stored(only.payload, job_id=job.job_id, position=only.sequence)
    return isinstance(event.data, Erased)


def _with(blocks: Blocks, changes: Mapping[str, ArchivedJob | None]) -> Blocks:
    """The blocks with these jobs as they are here, or without them; others stay as they are."""
    left = dict(sorted(changes.items()))
    result: Blocks = []
    for number, block in enumerate(blocks):
        is_last = number == len(blocks) - 1
        mine = {id: left.pop(id) for id in list(left) if is_last or id <= block.last}
        if not mine:
            result.append(block)
            continue
        jobs = {job.job_id: job for job in unpack(block.data)} | mine
        result += pack(job for _, job in sorted(jobs.items()) if job is not None)
    return result


def _merged(sources: Iterable[Blocks]) -> Blocks:
    """Block by block, for all of them together may be large."""
    streams = [_jobs_in(blocks) for blocks in sources]
    by_id = groupby(merge(*streams, key=attrgetter("job_id")), attrgetter("job_id"))
    return list(pack(_one_of(list(copies)) for _, copies in by_id))


def _one_of(copies: Sequence[ArchivedJob]) -> ArchivedJob:
    """What several segments have of a job; of an erased one only the event that says so."""
    joined = reduce(ArchivedJob.joined, copies)
    erased = next(filter(_is_erased, copies), None)
    return joined if erased is None else erased


def _jobs_in(blocks: Blocks) -> Iterator[ArchivedJob]:
    for block in blocks:
        yield from unpack(block.data)
