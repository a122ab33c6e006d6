"""Janitor: removes what is kept no longer, some at a time, and begins again wherever it died.

| what                                    | when it goes                                          |
|-----------------------------------------|-------------------------------------------------------|
| a job that has ended                    | after `retention_days`: images, deliveries, log, rows |
| what a late writer left of an erased job| at once, and a last time after `sweep_grace_s`        |
| an upload that no job names             | after `upload_retention_days`                         |
| an upload that was replaced or removed  | once no accepted job can need it                      |
| a file that belongs to no job or upload | when it is `sweep_grace_s` old                        |
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import datetime, timedelta
from itertools import groupby

from events.errors import JobUnreadable, ServiceError
from events.ids import is_job_id
from events.log import EventLog, JobWriter, utc_now
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.removal import Removal
from events.store.uploads import Uploads
from settings.retention import RetentionSettings
from storage.images import ImageStore, ImageStoreError, StoredFile
from storage.keys import UPLOADS

logger = logging.getLogger(__name__)

_LEASE_NAME = "janitor"
_LEASE_S = 120.0
"""After this silence another instance becomes the janitor."""


class Janitor:
    """Two may overlap for a while: every step may be repeated."""

    def __init__(
        self,
        *,
        holder: str,
        leases: Leases,
        log: EventLog,
        read_model: ReadModel,
        uploads: Uploads,
        images: ImageStore,
        removal: Removal,
        settings: RetentionSettings,
        longest_job_s: float,
        longest_delivery_s: float,
        batch: int = 500,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`longest_delivery_s`: within this time the delivery of a callback has ended.

        `batch`: how many jobs, uploads and files one round looks at.
        """
        self._holder = holder
        self._leases = leases
        self._writer = JobWriter(log)
        self._read_model = read_model
        self._uploads = uploads
        self._images = images
        self._removal = removal
        self._settings = settings
        self._longest_job_s = longest_job_s
        self._longest_delivery_s = longest_delivery_s
        self._batch = batch
        self._now = now
        self._files: AsyncGenerator[list[StoredFile]] | None = None
        """Where the sweep has come to."""

    async def run(self) -> None:
        """Until cancelled."""
        period_s = self._settings.janitor_period_s
        while True:
            more = False
            try:
                if await self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=_LEASE_S):
                    more = await self.round()
            except (ServiceError, ImageStoreError) as error:
                fields = {"action": "janitor", "error": str(error)}
                logger.warning("round was cut short", extra=fields)
            except Exception:
                logger.exception("round failed", extra={"action": "janitor"})
            await asyncio.sleep(0 if more else period_s * random.uniform(0.8, 1.2))

    async def round(self) -> bool:
        """At most a batch of each kind; True where all went well and more may be due."""
        most = self._batch
        counts = [
            await self._finish_erasures(most),
            await self._remove_old_jobs(most),
            await self._remove_uploads(most),
        ]
        await self._sweep_some(most)
        return most in counts

    async def _finish_erasures(self, most: int) -> int:
        now, grace = self._now(), timedelta(seconds=self._settings.sweep_grace_s)
        settled = 0
        for job_id, erased_at in await self._read_model.due_erasures(now, limit=most):
            if await self._removal.erase(job_id):
                last_look = erased_at + grace
                again_at = None if now >= last_look else last_look
                await self._read_model.settle_erasure(job_id, again_at=again_at)
                settled += 1
        return settled

    async def _remove_old_jobs(self, most: int) -> int:
        keep = self._settings.job_retention(longest_delivery_s=self._longest_delivery_s)
        if keep is None:
            return 0
        removed = 0
        for job_id in await self._read_model.ended_before(self._now() - keep, limit=most):
            fields = {"action": "remove", "job_id": job_id}
            try:
                await self._removal.remove(job_id)
            except (ServiceError, ImageStoreError) as error:
                logger.warning("job not removed yet", extra={**fields, "error": str(error)})
            else:
                logger.info("job removed", extra=fields)
                removed += 1
        return removed

    async def _remove_uploads(self, most: int) -> int:
        """The row first: from then on no job is accepted with the file."""
        keep = self._settings.upload_retention(longest_job_s=self._longest_job_s)
        longest_job = timedelta(seconds=self._longest_job_s)
        keys = await self._uploads.forget(
            unused_since=None if keep is None else self._now() - keep,
            replaced_before=self._now() - longest_job,
            limit=most,
        )
        for key in keys:
            await self._images.delete(key)
        return len(keys)

    async def _sweep_some(self, most: int) -> None:
        """The next files of a walk through all of them, which goes on in the next round."""
        if self._files is None:
            self._files = self._images.files(batch=most)
        try:
            files = await anext(self._files)
        except StopAsyncIteration:
            self._files = None
            return
        except ImageStoreError:
            self._files = None
            raise
        grace = timedelta(seconds=self._settings.sweep_grace_s)
        old = [file.key for file in files if file.stored_at < self._now() - grace]
        for key in await self._orphans(old):
            await self._images.delete(key)
            logger.info("orphan removed", extra={"action": "janitor", "key": key})

    async def _orphans(self, keys: Sequence[str]) -> list[str]:
        """Files of ours that nothing refers to."""
        uploads = [key for key in keys if key.startswith(f"{UPLOADS}/")]
        images = [key for key in keys if is_job_id(_job_of(key))]
        known = await self._uploads.known(uploads)
        known |= await self._read_model.image_keys({_job_of(key) for key in images})
        orphans = [key for key in uploads if key not in known]
        unknown = sorted(key for key in images if key not in known)
        for job_id, some in groupby(unknown, _job_of):
            orphans += await self._orphans_of(job_id, list(some))
        return orphans

    async def _orphans_of(self, job_id: str, keys: list[str]) -> list[str]:
        """The log decides: the read model may lag, and a job that runs may name its images yet."""
        try:
            job = await self._writer.load(job_id)
        except JobUnreadable:  # it may name any of them
            return []
        if job is not None and job.end is None:
            return []
        named = set() if job is None else {image.key for image in job.images}
        return [key for key in keys if key not in named]


def _job_of(key: str) -> str:
    return key.partition("/")[0]
