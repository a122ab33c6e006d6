"""EndedJobs: ends the jobs on the queue of an endpoint that goes, or is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from actors.dispatch.cluster import ActorUnavailable
from actors.job_error import end_job
from events.decisions import Dismiss, Expire, GiveUp
from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout
from events.log import JobWriter
from events.queue import JobQueue, QueuedJob

_AT_ONCE = 32
PASSING = (LogUnavailable, ReadTimeout, DatabaseUnavailable, ActorUnavailable)
"""What is not reached now is looked for again."""


class EndedJobs:
    def __init__(self, queue: JobQueue, writer: JobWriter) -> None:
        """`writer`: on a log that waits out outages."""
        self._queue = queue
        self._writer = writer

    async def end(
        self,
        endpoint: str,
        command: GiveUp | Dismiss | Expire,
        *,
        stays: Callable[[], Awaitable[bool]],
    ) -> int | None:
        """How many ended by the command; None if the endpoint is found to stay meanwhile.

        Raises LogUnavailable, ReadTimeout, and what `stays` raises.
        """
        after = ended = 0
        while page := await self._queue.queued(endpoint, after=after, most=_AT_ONCE):
            if await stays():
                return None
            ends = await asyncio.gather(*(self._end_job(endpoint, job, command) for job in page))
            after, ended = page[-1].position, ended + sum(ends)
        return None if await stays() else ended

    async def _end_job(
        self, endpoint: str, queued: QueuedJob, command: GiveUp | Dismiss | Expire
    ) -> bool:
        """False if it goes on, or only a later version can read the job, and end it."""
        if isinstance(command, Expire) and queued.deadline and queued.deadline > command.now:
            return False
        try:
            job = await self._writer.load(queued.job_id)
            if job is not None:
                job = (await self._writer.execute(command, job)).job
            if job is not None and job.end is None:
                return False
        except PASSING:
            raise
        except Exception as error:  # noqa: BLE001 - `end_job` logs it
            writer, action = self._writer, "remove_endpoint"
            if not await end_job(queued.job_id, error, writer=writer, action=action):
                return False
        await self._queue.remove(endpoint, queued.lane, queued.job_id)
        return True
