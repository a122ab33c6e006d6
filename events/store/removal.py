"""Removes everything that is kept of a job. Every step may be repeated, also after a crash."""

from __future__ import annotations

import logging

from events.errors import ServiceError
from events.job import Job
from events.log import EventLog
from events.store.read_model import ReadModel
from events.types import Erased
from storage.images import ImageStore, ImageStoreError

logger = logging.getLogger(__name__)


class Removal:
    def __init__(
        self, *, log: EventLog, deliveries: EventLog, images: ImageStore, read_model: ReadModel
    ) -> None:
        self._log = log
        self._deliveries = deliveries
        self._images = images
        self._read_model = read_model

    async def hide(self, job: Job) -> bool:
        """Blank the job's row, then do what `erase` does. The job's `Erased` is stored already.

        False if something is left to do.
        """
        hidden = True
        try:
            await self._read_model.erase(job)
        except ServiceError as error:  # the projection does the same, later
            hidden = False
            logger.warning("not hidden yet", extra=_fields(job.id, error))
        return await self.erase(job.id) and hidden

    async def erase(self, job_id: str) -> bool:
        """Remove images, deliveries and all events but `Erased`; False if something is left."""
        erased = True
        for step in (self._remove_files, self._erase_log):
            try:
                await step(job_id)
            except (ServiceError, ImageStoreError) as error:
                erased = False
                logger.warning("not erased yet", extra=_fields(job_id, error))
        return erased

    async def remove(self, job_id: str) -> None:
        """Remove images, deliveries and events, then the rows, which say what is left to do.

        Raises ImageStoreUnavailable, LogUnavailable, DatabaseUnavailable.
        """
        await self._remove_files(job_id)
        await self._log.purge(job_id)
        await self._read_model.remove(job_id)

    async def _remove_files(self, job_id: str) -> None:
        await self._images.delete_folder(job_id)
        await self._deliveries.purge(job_id)

    async def _erase_log(self, job_id: str) -> None:
        """Keep the last event, so that a late writer finds `Erased` and not an empty subject."""
        last = await self._log.last(job_id)
        if last is not None and isinstance(last.data, Erased):
            await self._log.purge(job_id, keep=1)


def _fields(job_id: str, error: Exception) -> dict[str, str]:
    return {"action": "erase", "job_id": job_id, "error": str(error)}
