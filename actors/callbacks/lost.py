"""Puts deliveries whose entry was lost back on the callback queue."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from events.delivery import fold_delivery
from events.errors import JobDamaged, JobOfLaterVersion
from events.log import EventLog, utc_now
from events.queue import CallbackQueue
from events.store.read_model import ReadModel

logger = logging.getLogger(__name__)

_PAGE = 500


class LostCallbacks:
    """Remembers which deliveries are open, and how far it has looked for more.

    Each delivery is read from the log once it has left the queue, and forgotten if it has ended.
    """

    def __init__(
        self,
        *,
        queue: CallbackQueue,
        read_model: ReadModel,
        deliveries: EventLog,
        period_s: float,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """A job that ended longer than `period_s` before now is not looked for."""
        self._queue = queue
        self._read_model = read_model
        self._deliveries = deliveries
        self._period = timedelta(seconds=period_s)
        self._now = now
        self._open: set[str] = set()
        self._position = 0
        """Log position of the last event of the last job that was looked at."""

    async def put_back(self) -> int:
        """Put lost entries back; how many.

        Raises DatabaseUnavailable, LogUnavailable, LogFull, ReadTimeout.
        """
        await self._look_for_more()
        count = 0
        for job_id in self._open - await self._queue.job_ids():
            try:
                has_ended = fold_delivery(await self._deliveries.read(job_id)).ended
            except JobOfLaterVersion:  # the version that reads it may take the entry
                has_ended = False
            except JobDamaged:  # it must not stop the others
                fields = {"action": "requeue", "job_id": job_id}
                logger.exception("unreadable delivery", extra=fields)
                has_ended = True
            if has_ended:
                self._open.discard(job_id)
            else:
                await self._queue.add(job_id)
                count += 1
        return count

    async def _look_for_more(self) -> None:
        """Look in log order, as the projection does, so that nothing is missed if it lags."""
        since = self._now() - self._period
        while jobs := await self._read_model.ended_behind(self._position, since=since, limit=_PAGE):
            self._open |= {job.id for job in jobs if job.submitted.callback_url is not None}
            self._position = jobs[-1].position
