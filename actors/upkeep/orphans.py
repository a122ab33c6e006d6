"""Sweeps files that belong to nothing: of no job, no upload and no segment that the tables know."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import datetime, timedelta
from itertools import groupby

from events.archive.archive import Archive, SegmentRef, segment_ref
from events.archive.segment import ArchivedJob
from events.errors import JobUnreadable, SegmentBroken
from events.ids import is_job_id
from events.log import EventLog, JobWriter, utc_now
from events.store.archiving.segments import Segments, SegmentState
from events.store.read_model import ReadModel
from events.store.uploads import Uploads
from storage.images import ImageNotFound, ImageStore, ImageStoreError, StoredFile
from storage.keys import ARCHIVE, UPLOADS

logger = logging.getLogger(__name__)


class Orphans:
    """A walk through all files, some at a time."""

    def __init__(
        self,
        *,
        log: EventLog,
        read_model: ReadModel,
        uploads: Uploads,
        segments: Segments,
        archive: Archive,
        images: ImageStore,
        grace_s: float,
        longest_job_s: float,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`grace_s`: how old a file must be; `longest_job_s`: an accepted job has ended by then."""
        self._log = log
        self._writer = JobWriter(log)
        self._read_model = read_model
        self._uploads = uploads
        self._segments = segments
        self._archive = archive
        self._images = images
        self._grace = timedelta(seconds=grace_s)
        self._longest_job = timedelta(seconds=longest_job_s)
        self._now = now
        self._files: AsyncGenerator[list[StoredFile]] | None = None
        """Where the walk has come to."""
        self._lacks_rows = False
        """Of jobs of the archive no row says so: the database was lost, and is not rebuilt yet."""
        self._rowless_since: dict[str, datetime] = {}
        """Files of uploads that have no row."""

    async def sweep(self, most: int) -> None:
        """Remove the orphans among about `most` files; the next call goes on from there."""
        if self._files is None:
            await self._sweep_archive(most)
            self._files = self._images.files(batch=most)
        try:
            files = await anext(self._files)
        except StopAsyncIteration:
            self._files = None
            return
        except ImageStoreError:
            self._files = None
            raise
        old = [file.key for file in self._old(files)]
        uploads = await self._lost_uploads([file.key for file in files])
        await self._remove([key for key in old if key in uploads])
        await self._remove(await self._orphaned_images(old))

    def _old(self, files: Iterable[StoredFile]) -> list[StoredFile]:
        return [file for file in files if file.stored_at < self._now() - self._grace]

    async def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self._images.delete(key)
            self._rowless_since.pop(key, None)
            logger.info("orphan removed", extra={"action": "janitor", "key": key})

    async def _sweep_archive(self, most: int) -> None:
        """Before all other files: which of those are orphans depends on it."""
        self._lacks_rows = await self._is_being_rebuilt()
        async for files in self._images.files(ARCHIVE, batch=most):
            old = {file.key for file in self._old(files)}
            refs = [ref for file in files if (ref := segment_ref(file.key))]
            known = await self._segments.known(refs)
            for ref in refs:
                if ref.id in known:
                    continue
                if not await self._is_left_over(ref):
                    self._lacks_rows = True
                    fields = {"action": "janitor", "key": ref.key}
                    logger.error("no row knows this segment: rebuild them", extra=fields)
                elif ref.key in old:
                    await self._remove([ref.key])

    async def _is_being_rebuilt(self) -> bool:
        """Whether segments are known already whose jobs' rows are not: a rebuild runs, or died."""
        if found := await self._segments.in_state(SegmentState.FOUND, limit=1):
            fields = {"action": "janitor", "key": found[0].key}
            logger.warning("a rebuild has not ended: no files are swept", extra=fields)
        return bool(found)

    async def _is_left_over(self, ref: SegmentRef) -> bool:
        """Whether its writer died after all: it has nothing that is not elsewhere, too."""
        try:
            async for jobs in self._archive.batches(ref):
                if not await self._are_elsewhere(jobs):
                    return False
        except SegmentBroken:
            return False
        except ImageNotFound:
            pass
        return True

    async def _are_elsewhere(self, jobs: Iterable[ArchivedJob]) -> bool:
        """In segments that are there, or in the log: rows alone may be those of an old backup."""
        last = {job.job_id: job.events[-1].sequence for job in jobs}
        named = await self._segments.of_jobs(last)
        there = {ref for ref in set(named.values()) if await self._archive.has(ref)}
        others = [job_id for job_id in last if named.get(job_id) not in there]
        stored = await self._log.stored(others)
        return all(
            job_id in stored and stored[job_id][-1].sequence >= last[job_id] for job_id in others
        )

    async def _lost_uploads(self, keys: Iterable[str]) -> set[str]:
        """Files of uploads that have had no row for as long as a job lasts.

        One that was accepted before the row was lost takes its file by the key.
        """
        uploads = [key for key in keys if key.startswith(f"{UPLOADS}/")]
        known = await self._uploads.known(uploads)
        now, lost = self._now(), set()
        for key in uploads:
            since = self._rowless_since.setdefault(key, now)
            if key in known or self._lacks_rows:
                del self._rowless_since[key]
            elif since <= now - self._longest_job:
                lost.add(key)
        return lost

    async def _orphaned_images(self, keys: Iterable[str]) -> list[str]:
        """Files of ours that nothing refers to."""
        images = [key for key in keys if is_job_id(_job_of(key))]
        known = await self._read_model.image_keys({_job_of(key) for key in images})
        unknown = sorted(key for key in images if key not in known)
        orphans: list[str] = []
        for job_id, some in groupby(unknown, _job_of):
            orphans += await self._orphans_of(job_id, list(some))
        return orphans

    async def _orphans_of(self, job_id: str, keys: list[str]) -> list[str]:
        """The log decides: the read model may lag, and a job that runs may name its images yet."""
        try:
            job = await self._writer.load(job_id)
        except JobUnreadable:  # it may name any of them
            return []
        if job is None:
            # Of an archived job, the rows that name its images are lost as long as others are.
            return [] if self._lacks_rows else keys
        if job.end is None:
            return []
        named = {image.key for image in job.images}
        return [key for key in keys if key not in named]


def _job_of(key: str) -> str:
    return key.partition("/")[0]
