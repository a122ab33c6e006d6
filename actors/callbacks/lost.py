"""Puts deliveries whose entry was lost back on the callback queue, and settles those that ended.

It walks through the jobs that are not settled (`events.store.unsettled`), so many a round, and
after the last one begins again at the first. The place that it has come to is in the database. So
a round has the same work on a small table and on a large one, a start goes on where the last
process was, and nothing is passed for good: a row that comes late, or that an erasure put ahead of
the projection, is met on the next way through.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from datetime import datetime

from events.delivery import fold_delivery
from events.errors import JobDamaged, JobOfLaterVersion, SegmentBroken, ServiceError
from events.log import EventLog
from events.queue import CallbackQueue
from events.store.unsettled import UnsettledJob, UnsettledJobs
from storage.images import ImageNotFound, ImageStoreError

logger = logging.getLogger(__name__)

_PAGE = 500
_AT_ONCE = 16
"""How many deliveries are read at a time."""


class LostCallbacks:
    """Two may overlap for a while: every step may be repeated."""

    def __init__(
        self,
        *,
        queue: CallbackQueue,
        unsettled: UnsettledJobs,
        deliveries: EventLog,
        period_s: float,
        batch: int,
    ) -> None:
        """A round every `period_s`, which looks at `batch` jobs at most."""
        self._queue = queue
        self._unsettled = unsettled
        self._deliveries = deliveries
        self._period_s = period_s
        self._batch = batch
        self._unreadable: set[str] = set()
        """Deliveries whose events cannot be read: each is told of once."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._period_s * random.uniform(0.8, 1.2))
            fields: dict[str, object] = {"action": "requeue"}
            try:
                if count := await self.put_back():
                    fields["count"] = count
                    logger.warning("callbacks had lost their entries", extra=fields)
            except (ServiceError, ImageStoreError) as error:
                logger.warning("could not re-queue", extra={**fields, "error": str(error)})
            except Exception:
                logger.exception("could not re-queue", extra=fields)

    async def put_back(self) -> int:
        """One round: put lost entries back; how many.

        Raises DatabaseUnavailable, LogUnavailable, LogFull, ReadTimeout, ImageStoreUnavailable.
        """
        count, looked_at = 0, 0
        place = before = await self._unsettled.place()
        while looked_at < self._batch:
            limit = min(_PAGE, self._batch - looked_at)
            page = await self._unsettled.page(after=place, limit=limit)
            count += await self._look_at(page)
            looked_at += len(page)
            place = page[-1].position if len(page) == limit else 0
            if place != before:
                await self._unsettled.move_to(place)
                before = place
            if place == 0:
                break
        return count

    async def _look_at(self, page: Sequence[UnsettledJob]) -> int:
        """Put back what is lost and settle what has ended; how many were lost."""
        ended = {job.id: job.ended_at for job in page if job.key is None}
        called = {job.id: job.key for job in page if job.key is not None}
        waiting = await self._queue.waiting(called.keys())
        idle = [job_id for job_id in called if job_id not in waiting]
        lost = 0
        for begin in range(0, len(idle), _AT_ONCE):
            some = idle[begin : begin + _AT_ONCE]
            for job_id, end in zip(some, await asyncio.gather(*map(self._end, some)), strict=True):
                if end is not None:
                    ended[job_id] = end
                elif job_id not in self._unreadable:
                    await self._queue.add(called[job_id])
                    lost += 1
        await self._unsettled.settle(ended)
        # Those that were asked for once more while this page was looked at.
        for job_id in await self._queue.waiting(ended.keys() & set(idle)):
            await self._unsettled.reopen(job_id)
        return lost

    async def _end(self, job_id: str) -> datetime | None:
        """When its delivery ended; None if it has not, or cannot be read."""
        try:
            events = await self._deliveries.read(job_id)
            return events[-1].time if fold_delivery(events).ended else None
        except JobOfLaterVersion:  # the version that reads it may take the entry
            return None
        except (JobDamaged, SegmentBroken, ImageNotFound):  # it must not stop the others
            if job_id not in self._unreadable:
                fields = {"action": "requeue", "job_id": job_id}
                logger.exception("unreadable delivery", extra=fields)
                self._unreadable.add(job_id)
            return None
