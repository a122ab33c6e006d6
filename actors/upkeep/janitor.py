"""Janitor: removes expired data in small batches.

Each step may be repeated, even by two janitors at the same time.

| data                                   | time of removal                          |
|----------------------------------------|------------------------------------------|
| an ended job, with its files (images,  | after `retention_days`, but not before   |
| history), events and database rows     | the delivery of its callback has ended   |
| data that late writers store for an    | at once, and again after `SWEEP_GRACE_S` |
| erased job                             |                                          |
| an upload that no job names            | after `upload_retention_days`            |
| an upload that was replaced or removed | when no accepted job can need it         |
| the file of an upload without a row    | after the longest time of a job          |
| any other file that belongs to no job  | when it is `SWEEP_GRACE_S` old           |
| or upload                              |                                          |
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import datetime, timedelta
from itertools import groupby

from events.delivery import fold_delivery, has_delivery
from events.errors import HistoryBroken, JobUnreadable, ServiceError
from events.ids import is_job_id
from events.log import EventLog, JobWriter, utc_now
from events.store.ended_jobs import EndedJob, EndedJobs
from events.store.leases import Leases
from events.store.read_model import ReadModel
from events.store.removal import SWEEP_GRACE_S, Removal
from events.store.uploads import Uploads
from settings.constant import constant
from settings.retention import RetentionSettings
from storage.file_names import UPLOADS, history_name
from storage.images import ImageNotFound, ImageStore, ImageStoreError, StoredFile

logger = logging.getLogger(__name__)

PERIOD_S = constant("JANITOR_PERIOD_S", 60.0)
"""Seconds between two rounds of the janitor, and between two rounds of the historian."""
UPKEEP_LEASE_S = constant("UPKEEP_LEASE_S", 120.0)
"""Seconds between the last renewal and the end of a lease of an upkeep loop."""


class Orphans:
    """Finds and removes files that belong to no job and no upload, in small batches."""

    def __init__(
        self,
        *,
        log: EventLog,
        read_model: ReadModel,
        uploads: Uploads,
        ended_jobs: EndedJobs,
        images: ImageStore,
        grace_s: float,
        longest_job_s: float,
        retention: timedelta | None,
        now: Callable[[], datetime],
    ) -> None:
        """Files may be removed when they are `grace_s` seconds old.

        Every job ends within `longest_job_s` seconds. Ended jobs are kept for `retention`, or
        forever if it is None.
        """
        self._writer = JobWriter(log)
        self._read_model = read_model
        self._uploads = uploads
        self._ended_jobs = ended_jobs
        self._images = images
        self._grace = timedelta(seconds=grace_s)
        self._longest_job = timedelta(seconds=longest_job_s)
        self._retention = retention
        self._now = now
        self._files: AsyncGenerator[list[StoredFile]] | None = None
        """The current iteration over all files, or None between two iterations."""
        self._rowless_since: dict[str, datetime] = {}
        """The time at which each upload without a database row was first found, by key."""
        self._lacks_rows = self._lacked_rows = False
        """Whether the current iteration (`_lacks_rows`) or the previous iteration (`_lacked_rows`)
        found a history object of a job without a database row.

        Such an object shows that the database was lost or is older than the files, and that the
        read model has not been rebuilt yet.
        """

    async def sweep(self, most: int) -> None:
        """Remove the orphans among about `most` files. Each call checks the next files."""
        if self._files is None:
            self._files = self._images.files(batch=most)
            self._lacks_rows, self._lacked_rows = False, self._lacks_rows
        try:
            files = await anext(self._files)
        except StopAsyncIteration:
            self._files = None
            return
        except ImageStoreError:
            self._files = None
            raise
        old = [file for file in files if file.stored_at < self._now() - self._grace]
        await self._remove(await self._orphans_of_jobs(old))
        uploads = await self._lost_uploads([file.key for file in files])
        await self._remove([file.key for file in old if file.key in uploads])

    async def _remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            await self._images.delete(key)
            self._rowless_since.pop(key, None)
            logger.info("orphan removed", extra={"action": "janitor", "key": key})

    async def _lost_uploads(self, keys: Iterable[str]) -> set[str]:
        """Return the keys of uploads that have had no row for the longest time of a job.

        Until then, a job that was accepted before the row was removed may read the file.
        """
        uploads = [key for key in keys if key.startswith(f"{UPLOADS}/")]
        known = await self._uploads.known(uploads)
        now, lost = self._now(), set()
        for key in uploads:
            since = self._rowless_since.setdefault(key, now)
            if key in known or self._lacks_rows or self._lacked_rows:
                del self._rowless_since[key]
            elif since <= now - self._longest_job:
                lost.add(key)
        return lost

    async def _orphans_of_jobs(self, old: Iterable[StoredFile]) -> list[str]:
        """Return the keys of files in the folders of jobs that no row names.

        A history object of a job without a row shows that the database was lost, so the files of
        the job stay for a rebuild of the read model. But if the object is older than the retention
        time, the job has expired, and its files are removed.
        """
        files = {file.key: file for file in old if is_job_id(_job_of(file.key))}
        job_ids = {_job_of(key) for key in files}
        rows = await self._ended_jobs.find_histories(job_ids)
        named = await self._read_model.image_keys(job_ids)
        named |= {history for history, _ in rows.values() if history is not None}
        orphans: list[str] = []
        for job_id, some in groupby(sorted(set(files) - named), _job_of):
            unnamed = list(some)
            histories = [key for key in unnamed if history_name(key) is not None]
            images = [key for key in unnamed if history_name(key) is None]
            if job_id not in rows:
                orphans += [key for key in histories if self._is_expired(files[key])]
                if await self._has_history(job_id):
                    self._note_lost_row(job_id)
                    continue
            elif (row := rows[job_id])[0] is not None and not row[1]:
                # The historian writes no object of this job now, because `hot_since` is NULL.
                orphans += histories
            if images:
                orphans += await self._orphaned_images(job_id, images)
        return orphans

    async def _orphaned_images(self, job_id: str, keys: list[str]) -> list[str]:
        """Return the keys of image files that the events of their job do not name.

        The events are read, because the read model may lag. The images of an open job are never
        orphans, because a later event may name them.
        """
        try:
            job = await self._writer.load(job_id)
        except JobUnreadable:  # The unreadable events may name the files.
            return []
        if job is not None and job.end is None:
            return []
        named = set() if job is None else {file.key for file in job.files}
        return [key for key in keys if key not in named]

    def _is_expired(self, history: StoredFile) -> bool:
        return self._retention is not None and history.stored_at < self._now() - self._retention

    async def _has_history(self, job_id: str) -> bool:
        """Return whether the job has a history object that has not expired."""
        async for files in self._images.files(job_id):
            for file in files:
                if history_name(file.key) is not None and not self._is_expired(file):
                    return True
        return False

    def _note_lost_row(self, job_id: str) -> None:
        if not self._lacks_rows:
            fields = {"action": "janitor", "job_id": job_id}
            logger.error("a job with a history has no row: rebuild the read model", extra=fields)
        self._lacks_rows = True


def _job_of(key: str) -> str:
    return key.partition("/")[0]


_LEASE_NAME = "janitor"
_AT_ONCE = 16
"""Largest number of jobs that are removed at the same time."""


class Janitor:
    def __init__(
        self,
        *,
        holder: str,
        leases: Leases,
        log: EventLog,
        deliveries: EventLog,
        read_model: ReadModel,
        ended_jobs: EndedJobs,
        uploads: Uploads,
        images: ImageStore,
        removal: Removal,
        settings: RetentionSettings,
        longest_job_s: float,
        longest_delivery_s: float,
        batch: int = 500,
        grace_s: float = SWEEP_GRACE_S,
        lease_s: float = UPKEEP_LEASE_S,
        period_s: float = PERIOD_S,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`deliveries` must also read history objects.

        Every job ends within `longest_job_s` seconds, and the delivery of its callback within
        `longest_delivery_s` seconds. A round handles up to `batch` jobs, uploads and files each.
        """
        self._holder = holder
        self._leases = leases
        self._deliveries = deliveries
        self._read_model = read_model
        self._ended_jobs = ended_jobs
        self._uploads = uploads
        self._images = images
        self._removal = removal
        self._settings = settings
        self._grace_s = grace_s
        self._lease_s = lease_s
        self._period_s = period_s
        self._longest_job_s = longest_job_s
        self._keep = settings.job_retention(longest_delivery_s=longest_delivery_s)
        self._batch = batch
        self._now = now
        self._orphans = Orphans(
            log=log,
            read_model=read_model,
            uploads=uploads,
            ended_jobs=ended_jobs,
            images=images,
            grace_s=grace_s,
            longest_job_s=longest_job_s,
            retention=self._keep,
            now=now,
        )
        self._last_old_job: EndedJob | None = None
        """The job after which the next round continues, or None to begin with the first job."""

    async def run(self) -> None:
        """Repeat rounds until cancelled."""
        while True:
            more = False
            try:
                if await self._leases.acquire(_LEASE_NAME, self._holder, ttl_s=self._lease_s):
                    more = await self.round()
            except (ServiceError, ImageStoreError) as error:
                fields = {"action": "janitor", "error": str(error)}
                logger.warning("a round was ended early", extra=fields)
            except Exception:
                logger.exception("round failed", extra={"action": "janitor"})
            await asyncio.sleep(0 if more else self._period_s * random.uniform(0.8, 1.2))

    async def round(self) -> bool:
        """Remove at most one batch of each kind of data. Returns whether more may be due."""
        most = self._batch
        counts = [
            await self._finish_erasures(most),
            await self._remove_old_jobs(most),
            await self._remove_uploads(most),
        ]
        await self._orphans.sweep(most)
        return most in counts

    async def _finish_erasures(self, most: int) -> int:
        now, grace = self._now(), timedelta(seconds=self._grace_s)
        settled = 0
        for job_id, erased_at in await self._read_model.due_erasures(now, limit=most):
            again_at: datetime | None = now  # After a failure, the job is due after all other jobs.
            try:
                if await self._removal.erase(job_id):
                    last_check_at = erased_at + grace
                    again_at = None if now >= last_check_at else last_check_at
                    settled += 1
            finally:
                await self._read_model.settle_erasure(job_id, again_at=again_at)
        return settled

    async def _remove_old_jobs(self, most: int) -> int:
        if self._keep is None:
            return 0
        now = self._now()
        jobs = await self._ended_jobs.ended_before(
            now - self._keep, after=self._last_old_job, limit=most
        )
        # The next round continues after these jobs, even if some of them cannot be removed yet.
        self._last_old_job = jobs[-1] if len(jobs) == most else None
        limit = asyncio.Semaphore(_AT_ONCE)

        async def remove(job: EndedJob) -> bool:
            async with limit:
                return await self._remove_old_job(job, found_at=now)

        return sum(await asyncio.gather(*map(remove, jobs)))

    async def _remove_old_job(self, job: EndedJob, *, found_at: datetime) -> bool:
        fields = {"action": "remove", "job_id": job.id}
        try:
            is_over = await self._has_been_called_back(job.id)
            if not is_over or not await self._removal.remove(job, found_at=found_at):
                return False
        except (ServiceError, ImageStoreError) as error:
            logger.warning("a job could not be removed yet", extra={**fields, "error": str(error)})
            return False
        logger.info("job removed", extra=fields)
        return True

    async def _has_been_called_back(self, job_id: str) -> bool:
        """Return whether the job has no delivery, or its delivery has ended or cannot end."""
        if not await self._read_model.unsettled.has(job_id):
            return True
        job = await self._read_model.job(job_id)
        if job is None or not has_delivery(job.submitted):
            return True
        try:
            delivery = await self._deliveries.read(job_id)
        except (HistoryBroken, ImageNotFound):
            return True  # The events of the delivery are lost, so it cannot end.
        # A delivery without its first event cannot end.
        is_cut_off = bool(delivery) and delivery[0].version > 1
        return is_cut_off or fold_delivery(delivery).ended

    async def _remove_uploads(self, most: int) -> int:
        """Remove expired uploads. Returns the number of removed uploads."""
        keep = self._settings.upload_retention(longest_job_s=self._longest_job_s)
        longest_job = timedelta(seconds=self._longest_job_s)
        keys = await self._uploads.forget(
            unused_since=None if keep is None else self._now() - keep,
            replaced_before=self._now() - longest_job,
            limit=most,
        )
        # The rows are removed before the files, so no job is accepted with an upload that is gone.
        for key in keys:
            await self._images.delete(key)
        return len(keys)
