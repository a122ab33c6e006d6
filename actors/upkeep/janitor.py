"""Janitor: removes what is kept no longer, some at a time, and begins again wherever it died.

| what                                    | when it goes                                          |
|-----------------------------------------|-------------------------------------------------------|
| a job that has ended, in the log        | after `retention_days`: images, deliveries, log, rows |
| a segment of the archive                | when that is over for all its jobs: images, rows, it  |
| what a late writer left of an erased job| at once, and a last time after `sweep_grace_s`        |
| an upload that no job names             | after `upload_retention_days`                         |
| an upload that was replaced or removed  | once no accepted job can need it                      |
| a file that belongs to no job or upload | when it is `sweep_grace_s` old, and that of an upload |
|                                         | without a row after the longest job (`orphans.py`)    |

No job goes before its callback's delivery has ended.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import datetime, timedelta

from actors.upkeep.orphans import Orphans
from events.delivery import fold_delivery, is_wanted
from events.errors import ServiceError
from events.log import EventLog, utc_now
from events.store.archiving.hot_jobs import HotJob, HotJobs
from events.store.archiving.segments import Segments
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.removal import Removal
from events.store.uploads import Uploads
from settings.retention import RetentionSettings
from storage.images import ImageStore, ImageStoreError

logger = logging.getLogger(__name__)

_LEASE_NAME = "janitor"


class Janitor:
    """Two may overlap for a while, as one that stalls and its successor: steps may be repeated."""

    def __init__(
        self,
        *,
        holder: str,
        leases: Leases,
        deliveries: EventLog,
        read_model: ReadModel,
        hot_jobs: HotJobs,
        segments: Segments,
        uploads: Uploads,
        images: ImageStore,
        removal: Removal,
        orphans: Orphans,
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
        self._deliveries = deliveries
        self._read_model = read_model
        self._hot_jobs = hot_jobs
        self._segments = segments
        self._uploads = uploads
        self._images = images
        self._removal = removal
        self._orphans = orphans
        self._settings = settings
        self._longest_job_s = longest_job_s
        self._keep = settings.job_retention(longest_delivery_s=longest_delivery_s)
        self._batch = batch
        self._now = now
        self._last_old_job: HotJob | None = None
        """How far the walk through old jobs has come; None: it begins at the first."""

    async def run(self) -> None:
        """Until cancelled."""
        period_s = self._settings.janitor_period_s
        while True:
            more = False
            try:
                if await self._lead():
                    more = await self.round()
            except (ServiceError, ImageStoreError) as error:
                fields = {"action": "janitor", "error": str(error)}
                logger.warning("round was cut short", extra=fields)
            except Exception:
                logger.exception("round failed", extra={"action": "janitor"})
            await asyncio.sleep(0 if more else period_s * random.uniform(0.8, 1.2))

    async def _lead(self) -> bool:
        lease_s = self._settings.upkeep_lease_s
        return await self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=lease_s)

    async def round(self) -> bool:
        """At most a batch of each kind; True where all went well and more may be due."""
        most = self._batch
        counts = [
            await self._finish_erasures(most),
            await self._remove_old_jobs(most),
            await self._remove_uploads(most),
        ]
        counts.append(await self._remove_old_segments())
        await self._orphans.sweep(most)
        return most in counts

    async def _finish_erasures(self, most: int) -> int:
        now, grace = self._now(), timedelta(seconds=self._settings.sweep_grace_s)
        settled = 0
        for job_id, erased_at in await self._read_model.due_erasures(now, limit=most):
            again_at: datetime | None = now  # behind all others, for as long as it fails
            try:
                if await self._removal.erase(job_id):
                    last_look = erased_at + grace
                    again_at = None if now >= last_look else last_look
                    settled += 1
            finally:
                await self._read_model.settle_erasure(job_id, again_at=again_at)
        return settled

    async def _remove_old_jobs(self, most: int) -> int:
        if self._keep is None:
            return 0
        now = self._now()
        # One whose delivery has not ended is looked at again in a later round.
        cool_since = now - timedelta(seconds=self._settings.janitor_period_s)
        jobs = await self._hot_jobs.old(
            now - self._keep, cool_since=cool_since, after=self._last_old_job, limit=most
        )
        # The next round begins behind these, whether they go or not, and then at the first again.
        self._last_old_job = jobs[-1] if len(jobs) == most else None
        return sum([await self._remove_old_job(job, found_at=now) for job in jobs])

    async def _remove_old_job(self, job: HotJob, *, found_at: datetime) -> bool:
        fields = {"action": "remove", "job_id": job.id}
        try:
            is_over = await self._has_been_called_back(job.id)
            if not is_over or not await self._removal.remove(job, found_at=found_at):
                await self._hot_jobs.postpone([job], self._now())
                return False
        except (ServiceError, ImageStoreError) as error:
            logger.warning("job not removed yet", extra={**fields, "error": str(error)})
            return False
        logger.info("job removed", extra=fields)
        return True

    async def _has_been_called_back(self, job_id: str) -> bool:
        """Whether its delivery has ended, if it has one."""
        if not await self._read_model.unsettled.has(job_id):
            return True
        job = await self._read_model.job(job_id)
        if job is None or not is_wanted(job.submitted):
            return True
        delivery = await self._deliveries.read(job_id)
        is_cut_off = bool(delivery) and delivery[0].version > 1  # nobody can end it any more
        return is_cut_off or fold_delivery(delivery).ended

    async def _remove_old_segments(self) -> int:
        """At most one; how many rounds of jobs it stands for is not known before."""
        if self._keep is None:
            return 0
        now = self._now()
        last_day = (now - self._keep).date() - timedelta(days=1)
        for ref in await self._segments.until(last_day, limit=1):
            fields = {"action": "remove", "segment": ref.key}
            try:
                if await self._removal.remove_segment(ref, found_at=now):
                    logger.info("segment removed", extra=fields)
                    return self._batch
            except (ServiceError, ImageStoreError) as error:
                logger.warning("segment not removed yet", extra={**fields, "error": str(error)})
            await self._segments.put_off(ref, self._now())
        return 0

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
