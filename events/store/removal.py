"""Removes everything that is kept of a job. Every step may be repeated, also after a crash.

Two may be at it, and one of them late: the id of a removed job may be another one's by then, whose
Idempotency-Key came again. So a removal takes no file and no event that is younger than itself. The
id of an erased job stays its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from events.archive.archive import Archive, SegmentRef
from events.errors import ServiceError
from events.job import Job
from events.log import EventLog, utc_now
from events.store.archiving.hot_jobs import HotJob
from events.store.archiving.segments import SegmentRow, Segments
from events.store.archiving.writer import ArchiveWriter
from events.store.read_model import ReadModel
from events.store.uploads import Uploads
from events.types import Erased
from storage.images import ImageNotFound, ImageStore, ImageStoreError
from storage.keys import copies_prefix

logger = logging.getLogger(__name__)

_ROWS = 500


class Removal:
    def __init__(
        self,
        *,
        log: EventLog,
        deliveries: EventLog,
        images: ImageStore,
        read_model: ReadModel,
        archive: Archive,
        segments: Segments,
        archive_writer: ArchiveWriter,
        uploads: Uploads,
    ) -> None:
        self._log = log
        self._deliveries = deliveries
        self._images = images
        self._read_model = read_model
        self._archive = archive
        self._segments = segments
        self._archive_writer = archive_writer
        self._uploads = uploads

    async def hide(self, job: Job) -> bool:
        """Blank the job's row, then do what `erase` does. The job's `Erased` is stored already.

        False if something is left to do.
        """
        try:
            await self._read_model.erase(job)
        except ServiceError as error:  # the projection does the same, later
            logger.warning("not hidden yet", extra=_fields(job.id, error))
            await self._erase(job.id, self._remove_files, self._erase_log)
            return False
        return await self.erase(job.id)

    async def erase(self, job_id: str) -> bool:
        """Remove images and their copies, deliveries, what the archive has, and all events but
        `Erased`.

        Its row is blank already. False if something is left.
        """
        steps = (
            self._remove_files,
            self._remove_copies,
            self._erase_log,
            self._archive_writer.erase,
        )
        return await self._erase(job_id, *steps)

    async def _erase(self, job_id: str, *steps: Callable[[str], Awaitable[None]]) -> bool:
        erased = True
        for step in steps:
            try:
                await step(job_id)
            except (ServiceError, ImageStoreError) as error:
                erased = False
                logger.warning("not erased yet", extra=_fields(job_id, error))
        return erased

    async def remove(self, job: HotJob, *, found_at: datetime) -> bool:
        """Remove images, deliveries and events, then the rows, which say what is left to do.

        `found_at`: at this time, or later, its row was as `job` says. What was stored since then is
        another job's, and stays.

        False if it stays, because the log has more of it than its row says.

        Raises ImageStoreUnavailable, LogUnavailable, DatabaseUnavailable.
        """
        last_delivery = await self._deliveries.last(job.id)  # before the look that says whose it is
        stored = (await self._log.stored([job.id])).get(job.id)
        if stored and stored[0].sequence <= job.position < stored[-1].sequence:
            return False
        if not stored or stored[-1].sequence <= job.position:
            await self._images.delete_folder(job.id, stored_by=found_at)
            if last_delivery is not None:
                await self._deliveries.purge(job.id, upto=last_delivery.position)
            await self._log.purge(job.id, upto=job.position)
        await self._read_model.remove({job.id: job.position})
        return True

    async def remove_segment(self, ref: SegmentRef, *, found_at: datetime) -> bool:
        """Remove images and rows of a segment's jobs, then the segment, which says what they are.

        `found_at`: at this time, or later, it was there; see `remove`.

        Where its object is lost, its jobs are like those that never left the log, for `remove`.

        False if it stays, because one of its jobs has something in the log again.

        Raises ImageStoreUnavailable, DatabaseUnavailable, SegmentBroken.
        """
        rows: list[SegmentRow] = []
        try:
            async for jobs in self._archive.batches(ref):
                rows += await self._segments.rows_of(ref, [job.job_id for job in jobs])
        except ImageNotFound:
            if count := await self._segments.forget([ref]):
                fields = {"action": "remove", "segment": ref.key, "jobs": count}
                logger.error("segment is lost", extra=fields)
            return True
        if any(row.is_hot for row in rows):
            return False
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            for row in part:
                await self._images.delete_folder(row.job_id, stored_by=found_at)
            await self._read_model.remove({row.job_id: row.position for row in part})
        await self._archive.delete(ref)
        await self._segments.remove(ref)
        return True

    async def _remove_files(self, job_id: str) -> None:
        await self._images.delete_folder(job_id)
        await self._deliveries.purge(job_id)

    async def _remove_copies(self, job_id: str) -> None:
        """Of its images that are inputs of other jobs: those that were accepted keep the files."""
        job = await self._read_model.job(job_id, with_request=False)
        if job is not None:
            owner = job.submitted.owner
            await self._uploads.remove_all(owner, copies_prefix(job_id), utc_now())

    async def _erase_log(self, job_id: str) -> None:
        """Keep the last event, so that a late writer finds `Erased` and not an empty subject."""
        last = await self._log.last(job_id)
        if last is not None and isinstance(last.data, Erased):
            await self._log.purge(job_id, keep=1)


def _fields(job_id: str, error: Exception) -> dict[str, str]:
    return {"action": "erase", "job_id": job_id, "error": str(error)}
