"""EndpointStatus: what the dispatcher knows of an endpoint that no row says, for whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from actors.dispatch.pool import WorkerPool
from actors.endpoints.pace import Pace
from events.errors import HistoryGone, JobUnreadable
from events.job import Job
from events.log import JobWriter, utc_now
from events.queue import JobQueue

_PAGE = 256
_MOST_PAGES = 8
"""Of the entries at the head of the queue, which run first: more jobs than that run nowhere."""
_MOST_READS = 32
"""Of jobs that neither run nor wait: a caller may have cancelled a whole backlog just now."""


class EndpointStatus:
    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        pool: WorkerPool,
        pace: Pace,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """`pace`: of the endpoint, however often its row has changed since."""
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._pool = pool
        self._pace = pace
        self._now = now

    def note_end(self) -> None:
        """A job has ended."""
        self._pace.note_end()

    async def tell(self) -> dict[str, Any]:
        """As JSON has it. Raises LogUnavailable, ReadTimeout.

        `oldest_waiting_s`: since the submission of the job that waits longest, None where none
        waits. `rate_per_s`: jobs that ended lately, None where none did.
        """
        return {
            "workers": self._pool.told(),
            "oldest_waiting_s": await self._oldest_waiting_s(),
            "rate_per_s": self._pace.per_s(),
        }

    async def _oldest_waiting_s(self) -> float | None:
        after = reads = 0
        for _ in range(_MOST_PAGES):
            page = await self._queue.queued(self._endpoint, after=after, most=_PAGE)
            for entry in page:
                if self._pool.free.running(entry.job_id) is not None:
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
        """The job; None if it has ended, or has an event that this process cannot read."""
        try:
            job = await self._writer.load(job_id)
        except (HistoryGone, JobUnreadable):
            return None
        return None if job is None or job.end is not None else job
