"""CallbackReaper: re-queues deliveries without an entry, and marks jobs whose delivery has ended as
settled.

It reads the unsettled jobs (`events.store.ended_jobs`) in log order. Each round reads a limited
number of jobs, whatever the size of the table. The position is stored in the database, so a new
process continues at the same position. After the last job the reaper starts again at the first job,
and so finds database rows that were written at an earlier position.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from datetime import datetime

from events.bus.queues import REQUEUE_PERIOD_S, CallbackQueue
from events.delivery import fold_delivery
from events.errors import HistoryBroken, JobDamaged, JobOfLaterVersion, ServiceError
from events.log import EventLog
from events.store.ended_jobs import UnsettledJob, UnsettledJobs
from settings.constant import constant
from storage.images import ImageNotFound, ImageStoreError, ImageStoreUnavailable

logger = logging.getLogger(__name__)

_REPAIR_BATCH = constant("CALLBACK_REPAIR_BATCH", 5000)
"""Largest number of unsettled jobs that are checked in one round."""
_PAGE = 500
_AT_ONCE = 16
"""Number of deliveries that are read at the same time."""


class CallbackReaper:
    """Repairs the callback queue. Two reapers may run at once, because every step is repeatable."""

    def __init__(
        self,
        *,
        queue: CallbackQueue,
        unsettled: UnsettledJobs,
        deliveries: EventLog,
        batch: int = _REPAIR_BATCH,
        period_s: float = REQUEUE_PERIOD_S,
    ) -> None:
        """A round begins about `period_s` seconds after the last, and checks up to `batch` jobs."""
        self._queue = queue
        self._unsettled = unsettled
        self._deliveries = deliveries
        self._period_s = period_s
        self._batch = batch
        self._unreadable: set[str] = set()
        """Jobs whose delivery has an event that cannot be read. Each such job is logged once."""

    async def run(self) -> None:
        """Repeat rounds until cancelled."""
        while True:
            await asyncio.sleep(self._period_s * random.uniform(0.8, 1.2))
            fields: dict[str, object] = {"action": "requeue"}
            try:
                if count := await self.requeue_round():
                    fields["count"] = count
                    logger.warning("callbacks without an entry were queued again", extra=fields)
            except (ServiceError, ImageStoreError) as error:
                logger.warning(
                    "callbacks could not be queued again", extra={**fields, "error": str(error)}
                )
            except Exception:
                logger.exception("callbacks could not be queued again", extra=fields)

    async def requeue_round(self) -> int:
        """Run one round. Returns the number of deliveries that were re-queued.

        Raises DatabaseUnavailable, LogUnavailable, LogFull, ReadTimeout. Raises
        ImageStoreUnavailable if no delivery of a page can be read. The next round then begins after
        this page.
        """
        count, checked = 0, 0
        place = before = await self._unsettled.stored_position()
        while checked < self._batch:
            limit = min(_PAGE, self._batch - checked)
            page = await self._unsettled.page(after=place, limit=limit)
            lost, outage = await self._repair_page(page)
            count += lost
            checked += len(page)
            place = page[-1].position if len(page) == limit else 0
            if place != before:
                await self._unsettled.store_position(place)
                before = place
            if outage is not None:
                raise outage
            if place == 0:
                break
        return count

    async def _repair_page(
        self, page: Sequence[UnsettledJob]
    ) -> tuple[int, ImageStoreUnavailable | None]:
        """Re-queue deliveries without an entry, and mark jobs as settled. Returns the number of
        re-queued deliveries, and an error if no delivery could be read.
        """
        ended = {job: job.ended_at for job in page if not job.has_delivery}
        called = {job.id: job for job in page if job.has_delivery}
        waiting = await self._queue.waiting(called)
        idle = [job_id for job_id in called if job_id not in waiting]
        lost = 0
        outages: list[ImageStoreUnavailable] = []
        for begin in range(0, len(idle), _AT_ONCE):
            some = idle[begin : begin + _AT_ONCE]
            for job_id, end in zip(some, await asyncio.gather(*map(self._end, some)), strict=True):
                if isinstance(end, ImageStoreUnavailable):
                    outages.append(end)
                elif end is not None:
                    ended[called[job_id]] = end
                elif job_id not in self._unreadable:
                    await self._queue.add(job_id)
                    lost += 1
        await self._unsettled.settle(ended)
        # A job has an entry again if its callback was requested again since the queue was read.
        settled = {job.id for job in ended}
        for job_id in await self._queue.waiting(settled & set(idle)):
            await self._unsettled.reopen(job_id)
        return lost, outages[0] if outages and len(outages) == len(idle) else None

    async def _end(self, job_id: str) -> datetime | ImageStoreUnavailable | None:
        """Return the time at which the delivery ended, or None if it has not ended or cannot be
        read. Returns an error if a later round may be able to read the delivery.
        """
        try:
            events = await self._deliveries.read(job_id)
            return events[-1].time if fold_delivery(events).ended else None
        except JobOfLaterVersion:  # A process of the later version may handle the entry.
            return None
        except ImageStoreUnavailable as error:
            fields = {"action": "requeue", "job_id": job_id, "error": str(error)}
            logger.warning("a delivery is read again later", extra=fields)
            return error
        # One unreadable delivery must not stop the repair of the others.
        except (JobDamaged, HistoryBroken, ImageNotFound):
            if job_id not in self._unreadable:
                fields = {"action": "requeue", "job_id": job_id}
                logger.exception("unreadable delivery", extra=fields)
                self._unreadable.add(job_id)
            return None
