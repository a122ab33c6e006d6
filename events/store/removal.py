"""Removes all data of a job. Every step may be repeated, also after a crash.

Two processes may remove the same job, and one of them may be late. Its id may then belong to a new
job that was submitted with the same Idempotency-Key. A removal therefore spares files and events
that are newer than its beginning. The id of an erased job can be used again only after the removal
of its row.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import datetime

from events.errors import ServiceError
from events.job import Job
from events.log import EventLog, utc_now
from events.store.ended_jobs import EndedJob
from events.store.read_model import ReadModel
from events.store.uploads import Uploads
from events.types import Erased
from settings.constant import constant
from storage.file_names import HistoryName, copies_prefix
from storage.images import ImageStore, ImageStoreError

logger = logging.getLogger(__name__)

SWEEP_GRACE_S = constant("SWEEP_GRACE_S", 3600.0)
"""The age in seconds from which a file that belongs to no job and no upload is removed."""


class Removal:
    def __init__(
        self,
        *,
        log: EventLog,
        deliveries: EventLog,
        images: ImageStore,
        read_model: ReadModel,
        uploads: Uploads,
    ) -> None:
        self._log = log
        self._deliveries = deliveries
        self._images = images
        self._read_model = read_model
        self._uploads = uploads

    async def hide(self, job: Job) -> bool:
        """Write the row of an erased job, then call `erase`. `Erased` must already be in the log.

        Return False if something is left to do.
        """
        try:
            await self._read_model.erase(job)
        # If the row cannot be changed now, the projection replaces it later.
        except ServiceError as error:
            logger.warning("not hidden yet", extra=_fields(job.id, error))
            await self._try(job.id, lambda: self._remove_files(job.id, job.version))
            await self._try(job.id, lambda: self._erase_log(job.id))
            return False
        return await self.erase(job.id)

    async def erase(self, job_id: str) -> bool:
        """Remove an erased job's files, their copies, its history, and all events except `Erased`.

        Nothing is done if there is no row, or if the row does not show the job as erased. In the
        second case, the id belongs to a new job. Return False if something is left to do.
        """
        try:
            job = await self._read_model.job(job_id, with_request=False)
        except ServiceError as error:
            logger.warning("not erased yet", extra=_fields(job_id, error))
            return False
        if job is None or not job.erased:
            return True
        steps = [
            await self._try(job_id, lambda: self._remove_files(job_id, job.version)),
            await self._try(job_id, lambda: self._remove_copies(job)),
            await self._try(job_id, lambda: self._erase_log(job_id)),
        ]
        return all(steps)

    async def _try(self, job_id: str, step: Callable[[], Awaitable[None]]) -> bool:
        try:
            await step()
        except (ServiceError, ImageStoreError) as error:
            logger.warning("not erased yet", extra=_fields(job_id, error))
            return False
        return True

    async def remove(self, job: EndedJob, *, found_at: datetime) -> bool:
        """Remove the files, the delivery's events and the events of a job, and then its rows.

        The rows are removed last, because they show that work is left. `found_at` is not later than
        the read of the row `job`. Files that were stored after `found_at` belong to a new job with
        this id and stay. Return False if the job stays, because the log has more events than its
        row shows. Raises ImageStoreUnavailable, LogUnavailable, DatabaseUnavailable.
        """
        # The delivery is read before the events of the job. If these events are still those of
        # `job`, the delivery is also that of `job`, and not of a new job with this id.
        last_delivery = await self._deliveries.last(job.id)
        stored = (await self._log.read_raw([job.id])).get(job.id)
        if stored and stored[0].sequence <= job.position < stored[-1].sequence:
            return False
        if not stored or stored[-1].sequence <= job.position:
            await self._images.delete_folder(job.id, stored_by=found_at)
            if last_delivery is not None:
                await self._deliveries.purge(job.id, upto=last_delivery.position)
            if stored:
                await self._log.purge(job.id, upto=job.position)
        await self._read_model.remove({job.id: job.position})
        return True

    async def _remove_files(self, job_id: str, version: int) -> None:
        """Remove the files and the delivery of a job.

        `version` is the version of its `Erased`. The history object with only this event stays.
        """
        await self._images.delete_folder(job_id, but=HistoryName(job_id, version, 0).key)
        await self._deliveries.purge(job_id)

    async def _remove_copies(self, job: Job) -> None:
        """Remove the names of uploads that are copies of the images of a job.

        The files of the copies stay while an accepted job may need them.
        """
        await self._uploads.remove_all(job.submitted.owner, copies_prefix(job.id), utc_now())

    async def _erase_log(self, job_id: str) -> None:
        """Remove all events except the last, `Erased`, after which a late writer writes nothing."""
        last = await self._log.last(job_id)
        if last is not None and isinstance(last.data, Erased):
            await self._log.purge(job_id, keep=1)


def _fields(job_id: str, error: Exception) -> dict[str, str]:
    return {"action": "erase", "job_id": job_id, "error": str(error)}
