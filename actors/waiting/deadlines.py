"""Deadlines: ends the jobs of an endpoint that wait past their deadline, wherever they stand.

The queue says when each of its entries is due. Of each stretch of it only the earliest deadline is
kept, and the stretch is read again when that has come: what was done meanwhile is no longer there.
So memory follows the length of the queue by one value for many jobs, an entry is read about twice,
and nothing depends on the projection. Whether a job has run out of time is decided on its events.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from actors.job_error import end_job
from events.decisions import Expire
from events.errors import LogUnavailable, ReadTimeout
from events.log import JobWriter, utc_now
from events.queue import JobQueue, QueuedJob
from events.retry import keep_trying

logger = logging.getLogger(__name__)

_STRETCH = 256
"""Entries that share one kept deadline, and are read at once."""
_AT_ONCE = 32
_JOB_TIMEOUT_S = 10.0
_LOOK_AGAIN = timedelta(seconds=5)
_LATER_VERSION = timedelta(minutes=1)
"""When a job is looked at again that only a later version can read."""
_FORGET = timedelta(minutes=10)
"""What is known of the queue is read anew so often: a replica of it may have lagged behind."""
_PASSING = (LogUnavailable, ReadTimeout)


@dataclass(slots=True)
class _Stretch:
    """The entries behind `after` up to `last`, both positions on the queue."""

    after: int
    last: int
    entries: int
    earliest: datetime | None
    """Deadline of an entry; None where none is left to wait for."""


class Deadlines:
    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        is_running: Callable[[str], bool],
        why: Callable[[], str | None],
        period_s: float,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`is_running`: whether a job, by its id, is on a worker, where it has a clock of its own.

        `why`: what keeps jobs waiting now, if anything does. `period_s`: how late one may be ended.
        """
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._is_running = is_running
        self._why = why
        self._period_s = period_s
        self._now = now
        self._stretches: list[_Stretch] = []
        self._begun_at = now()
        self._queue_made_at: datetime | None = None
        """Of the queue whose positions are known."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await keep_trying(self.sweep, on=_PASSING)
            await asyncio.sleep(self._period_s)

    async def sweep(self) -> None:
        """End what has run out of time. Raises LogUnavailable, ReadTimeout."""
        made_at = await self._queue.made_at()
        is_recent = self._begun_at <= self._now() < self._begun_at + _FORGET
        if not is_recent or made_at != self._queue_made_at:
            self._stretches, self._begun_at = [], self._now()
            self._queue_made_at = made_at
        await self._read_on()
        for stretch in self._stretches:
            if stretch.earliest is not None and stretch.earliest <= self._now():
                stretch.earliest = await self._look_at(stretch)

    async def _read_on(self) -> None:
        """Note the entries that are new on the queue."""
        while page := await self._page(self._stretches[-1].last if self._stretches else 0):
            earliest = _earliest([await self._deadline(entry) for entry in page])
            last = self._stretches[-1] if self._stretches else None
            if last is not None and last.entries + len(page) <= _STRETCH:
                last.last, last.entries = page[-1].position, last.entries + len(page)
                last.earliest = _earliest([last.earliest, earliest])
            else:
                after = 0 if last is None else last.last
                new = _Stretch(after, page[-1].position, len(page), earliest)
                self._stretches.append(new)
            if len(page) < _STRETCH:
                return

    async def _page(self, after: int) -> list[QueuedJob]:
        return await self._queue.queued(self._endpoint, after=after, most=_STRETCH)

    async def _deadline(self, entry: QueuedJob) -> datetime | None:
        """From its events where the entry, of an older version, does not say; None: it has ended.

        An entry whose events cannot be read is left to whoever takes it off the queue.
        """
        if entry.deadline is not None:
            return entry.deadline
        try:
            job = await self._writer.load(entry.job_id)
        except _PASSING:
            raise
        except Exception:  # noqa: BLE001 - whatever its events hold
            return None
        return None if job is None or job.end is not None else job.due_at

    async def _look_at(self, stretch: _Stretch) -> datetime | None:
        """End what is due there. When to look again, if at all."""
        page = await self._page(stretch.after)
        entries = [entry for entry in page if entry.position <= stretch.last]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def next_look(entry: QueuedJob) -> datetime | None:
            async with turns:
                return await self._look_at_entry(entry)

        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(next_look(entry)) for entry in entries]
        return _earliest([look.result() for look in looks])

    async def _look_at_entry(self, entry: QueuedJob) -> datetime | None:
        """An error about one job ends that job, and keeps no other waiting."""
        try:
            async with asyncio.timeout(_JOB_TIMEOUT_S):
                return await self._end_if_due(entry)
        except (TimeoutError, *_PASSING):
            return self._now() + _LOOK_AGAIN
        except Exception as error:  # noqa: BLE001 - `end_job` logs it
            return await self._give_up(entry.job_id, error)

    async def _give_up(self, job_id: str, error: Exception) -> datetime | None:
        try:
            is_done = await end_job(job_id, error, writer=self._writer, action="expire")
        except _PASSING:
            return self._now() + _LOOK_AGAIN
        except Exception:
            logger.exception("job could not be ended", extra={"action": "expire", "job_id": job_id})
            return None
        return None if is_done else self._now() + _LATER_VERSION

    async def _end_if_due(self, entry: QueuedJob) -> datetime | None:
        deadline, now = await self._deadline(entry), self._now()
        if deadline is None or deadline > now:
            return deadline
        if self._is_running(entry.job_id):
            return now + _LOOK_AGAIN
        return await self._expire(entry)

    async def _expire(self, entry: QueuedJob) -> datetime | None:
        job = await self._writer.load(entry.job_id)
        if job is not None:
            job = (await self._writer.execute(Expire(self._now(), self._why()), job)).job
        if job is not None and job.end is None:
            return max(job.due_at, self._now() + _LOOK_AGAIN)
        await self._queue.remove(self._endpoint, entry.lane, entry.job_id)
        return None


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)
