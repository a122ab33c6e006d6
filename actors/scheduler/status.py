"""EndpointStatus: the state of an endpoint for the API and the metrics, except its database row."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import Any

from actors.scheduler.pool import WorkerPool
from events.bus.queues import JobQueue
from events.errors import HistoryGone, JobUnreadable
from events.job import Job
from events.log import JobWriter, utc_now

_PAGE = 256
_MOST_PAGES = 8
"""Largest number of pages that are read from the head of the queue. They also contain the entries
of running jobs.
"""
_MOST_READS = 32
"""Largest number of jobs that are read to find a waiting job. Many jobs on the queue may have
ended, for example after a caller has cancelled a whole backlog.
"""
_WINDOW_S = 60


class EndpointStatus:
    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        end_rate: EndRate,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._end_rate = end_rate
        self._now = now

    async def describe(self) -> dict[str, Any]:
        """Return the status as JSON. Raises LogUnavailable, ReadTimeout.

        `oldest_waiting_s` is the age in seconds of the first waiting job on the queue, or None if
        none was found. `rate_per_s` is the number of jobs that end per second, or None if no job
        has ended in the last minute.
        """
        return {
            "workers": self._pool.describe(),
            "oldest_waiting_s": await self._oldest_waiting_s(),
            "rate_per_s": self._end_rate.per_s(),
        }

    async def _oldest_waiting_s(self) -> float | None:
        after = reads = 0
        for _ in range(_MOST_PAGES):
            page = await self._queue.queued(self._endpoint, after=after, most=_PAGE)
            for entry in page:
                if self._pool.slot_index.slot_of(entry.job_id) is not None:
                    continue
                if (job := await self._waiting(entry.job_id)) is not None:
                    return max((self._now() - job.submitted_at).total_seconds(), 0.0)
                if (reads := reads + 1) == _MOST_READS:
                    return None
            if len(page) < _PAGE:
                return None
            after = page[-1].position
        return None

    async def _waiting(self, job_id: str) -> Job | None:
        """Return the job, or None if it has ended or this process cannot read it."""
        try:
            job = await self._writer.load(job_id)
        except (HistoryGone, JobUnreadable):
            return None
        return None if job is None or job.end is not None else job


class EndRate:
    """The rate at which jobs of an endpoint end. The ends are counted per second to save memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._ends: deque[tuple[int, int]] = deque(maxlen=_WINDOW_S + 1)
        """Each second in which jobs ended, with the number of ended jobs."""

    def note_end(self) -> None:
        second, ends = int(self._clock()), 0
        if self._ends and self._ends[-1][0] == second:
            _, ends = self._ends.pop()
        self._ends.append((second, ends + 1))

    def per_s(self) -> float | None:
        """Return the jobs per second in the last minute, or None if no job has ended."""
        now = self._clock()
        ends = sum(count for second, count in self._ends if second > now - _WINDOW_S)
        return ends / min(max(now - self._since, 1.0), _WINDOW_S) if ends else None
