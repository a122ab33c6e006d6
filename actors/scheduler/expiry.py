"""Expiry of waiting jobs, and the reaper of lost queue entries.

Both read the queue of an endpoint, which has an entry for each waiting job, prefetched or not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from actors.job_error import give_up_after_error
from actors.scheduler.pool import WorkerPool
from actors.scheduler.prefetch import Prefetch
from events.bus.queues import JobQueue, QueuedJob
from events.decisions import Expire
from events.errors import JobUnreadable, LogFull, LogUnavailable, ReadTimeout
from events.log import JobWriter, utc_now
from events.retry import keep_trying
from settings.constant import constant

logger = logging.getLogger(__name__)

EXPIRY_PERIOD_S = constant("DEADLINES_PERIOD_S", 1.0)
"""Seconds between two searches for expired jobs on a queue."""
_PAGE = 256
"""Largest number of entries that are read in one request."""
_AT_ONCE = 32
_JOB_TIMEOUT_S = 10.0
_CHECK_AGAIN = timedelta(seconds=5)
_LATER_VERSION = timedelta(minutes=1)
"""Time after which a job that only a later version can read is checked again."""
_FORGET = timedelta(minutes=10)
"""Time after which the whole queue is read again. Entries may have been missed if a replica of NATS
lagged.
"""
_LOOKS = 3
"""The queue is read this many times in the time after which an entry counts as lost."""
_TRANSIENT = (LogUnavailable, ReadTimeout)


@dataclass(slots=True)
class _Stretch:
    """A part of the queue: the entries after the position `after`, up to the position `last`."""

    after: int
    last: int
    entries: int
    earliest: datetime | None
    """The time at which the stretch must be checked, or None if no entry is left."""


class Expiry:
    """Ends the jobs of an endpoint that wait past their deadline.

    To save memory, only the earliest deadline of each stretch of the queue is kept. When this
    deadline has passed, the remaining entries of the stretch are read again. So each entry is read
    about twice. The events of a job decide whether the job has expired.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        period_s: float = EXPIRY_PERIOD_S,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """A job ends at most `period_s` seconds after its deadline. For jobs on a worker of the
        pool, the job actor checks the deadline instead.
        """
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._period_s = period_s
        self._now = now
        self._stretches: list[_Stretch] = []
        self._begun_at = now()
        self._queue_made_at: datetime | None = None
        """The time at which the queue of the stretches was created."""

    async def run(self) -> None:
        """End expired jobs until cancelled."""
        while True:
            await keep_trying(self.sweep, on=_TRANSIENT)
            await asyncio.sleep(self._period_s)

    async def sweep(self) -> None:
        """End the expired jobs. Raises LogUnavailable, ReadTimeout."""
        made_at = await self._queue.made_at()
        is_recent = self._begun_at <= self._now() < self._begun_at + _FORGET
        if not is_recent or made_at != self._queue_made_at:
            self._stretches, self._begun_at = [], self._now()
            self._queue_made_at = made_at
        await self._read_on()
        for stretch in self._stretches:
            if stretch.earliest is not None and stretch.earliest <= self._now():
                stretch.earliest = await self._check(stretch)

    async def _read_on(self) -> None:
        """Read the entries after the last stretch."""
        while page := await self._page(self._stretches[-1].last if self._stretches else 0):
            earliest = min(entry.deadline for entry in page)
            last = self._stretches[-1] if self._stretches else None
            if last is not None and last.entries + len(page) <= _PAGE:
                last.last, last.entries = page[-1].position, last.entries + len(page)
                last.earliest = _earliest([last.earliest, earliest])
            else:
                after = 0 if last is None else last.last
                new = _Stretch(after, page[-1].position, len(page), earliest)
                self._stretches.append(new)
            if len(page) < _PAGE:
                return

    async def _page(self, after: int) -> list[QueuedJob]:
        return await self._queue.queued(self._endpoint, after=after, most=_PAGE)

    async def _check(self, stretch: _Stretch) -> datetime | None:
        """End the expired jobs of a stretch. Returns the new `earliest` of the stretch."""
        page = await self._page(stretch.after)
        entries = [entry for entry in page if entry.position <= stretch.last]
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def next_check(entry: QueuedJob) -> datetime | None:
            async with at_once:
                return await self._check_entry(entry)

        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(next_check(entry)) for entry in entries]
        return _earliest([check.result() for check in checks])

    async def _check_entry(self, entry: QueuedJob) -> datetime | None:
        """End the job if it has expired. Returns the time of the next check, or None.

        An error about the job ends this job, and does not delay other jobs.
        """
        try:
            async with asyncio.timeout(_JOB_TIMEOUT_S):
                return await self._end_if_due(entry)
        except (TimeoutError, *_TRANSIENT):
            return self._now() + _CHECK_AGAIN
        except Exception as error:  # noqa: BLE001 - `give_up_after_error` logs it
            return await self._give_up(entry.job_id, error)

    async def _give_up(self, job_id: str, error: Exception) -> datetime | None:
        try:
            is_done = await give_up_after_error(job_id, error, writer=self._writer, action="expire")
        except _TRANSIENT:
            return self._now() + _CHECK_AGAIN
        except Exception:
            logger.exception(
                "an expired job could not be ended", extra={"action": "expire", "job_id": job_id}
            )
            return None
        return None if is_done else self._now() + _LATER_VERSION

    async def _end_if_due(self, entry: QueuedJob) -> datetime | None:
        now = self._now()
        if entry.deadline > now:
            return entry.deadline
        if self._pool.slot_index.slot_of(entry.job_id) is not None:
            return now + _CHECK_AGAIN
        job = await self._writer.load(entry.job_id)
        if job is not None:
            job = (await self._writer.execute(Expire(self._now(), self._pool.trouble()), job)).job
        if job is not None and job.end is None:
            return max(job.due_at, self._now() + _CHECK_AGAIN)
        await self._queue.remove(self._endpoint, entry.lane, entry.job_id)
        return None


def _earliest(times: Iterable[datetime | None]) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


class EntryReaper:
    """Replaces the entries of jobs that wait, but have not been prefetched for a long time.

    After a kill under load, a NATS server once stored an entry and no longer delivered it, for an
    unknown reason. The job of such an entry would wait until its deadline. If both the old and the
    new entry are delivered, the events decide which delivery runs the job.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        prefetch: Prefetch,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """An entry counts as lost after `patience_s` seconds, which must be longer than the hold of
        an entry. While `prefetch` is full, no entry counts as lost.
        """
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._prefetch = prefetch
        self._patience_s = patience_s
        self._clock = clock
        self._missing_since: dict[str, float] = {}

    async def run(self) -> None:
        """Replace lost entries until cancelled."""
        while True:
            await asyncio.sleep(self._patience_s / _LOOKS)
            await keep_trying(self.look, on=(*_TRANSIENT, LogFull))

    async def look(self) -> None:
        """Replace lost entries. Raises LogUnavailable, LogFull, ReadTimeout."""
        missing = await self._missing() if self._prefetch.has_room else []
        now = self._clock()
        self._missing_since = {
            entry.job_id: self._missing_since.get(entry.job_id, now) for entry in missing
        }
        for entry in missing:
            if now - self._missing_since[entry.job_id] >= self._patience_s:
                await self._put_again(entry)
                del self._missing_since[entry.job_id]

    async def _missing(self) -> list[QueuedJob]:
        found: list[QueuedJob] = []
        after = 0
        while page := await self._queue.queued(self._endpoint, after=after, most=_PAGE):
            found += [entry for entry in page if not self._prefetch.knows(entry.job_id)]
            after = page[-1].position
        return found

    async def _put_again(self, entry: QueuedJob) -> None:
        try:
            job = await self._writer.load(entry.job_id)
        except JobUnreadable:
            return  # The dispatcher ends the job when the entry is delivered.
        if job is None or job.end is not None:
            await self._queue.remove(self._endpoint, entry.lane, entry.job_id)
        elif not job.has_running_attempt:
            fields = {"action": "entry_forgotten", "job_id": entry.job_id}
            logger.warning("a lost entry is put on the queue again", extra=fields)
            await self._queue.put_again(
                self._endpoint, entry.lane, entry.job_id, deadline=entry.deadline
            )
