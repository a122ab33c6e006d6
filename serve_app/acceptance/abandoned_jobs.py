"""AbandonedJobs: cancels jobs whose callers got no answer and have no means to find the job."""

from __future__ import annotations

import asyncio
import logging
import random

from events.bus.queues import JobQueue
from events.decisions import Cancel
from events.errors import ServiceError
from events.job import fold
from events.log import EventLog, JobWriter

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0


class AbandonedJobs:
    """Cancels jobs whose callers got no answer, and sent neither an idempotency key nor a job id.

    The append of such a job may still be in progress. So the log is read repeatedly, until it
    contains the job or `period_s` seconds have passed.
    """

    def __init__(
        self,
        *,
        log: EventLog,
        writer: JobWriter,
        queue: JobQueue,
        period_s: float = 300.0,
        first_pause_s: float = _FIRST_PAUSE_S,
    ) -> None:
        self._log = log
        self._writer = writer
        self._queue = queue
        self._period_s = period_s
        self._first_pause_s = first_pause_s
        self._tasks: set[asyncio.Task[None]] = set()

    def cancel(self, job_id: str) -> None:
        """Begin to cancel a job in the background."""
        task = asyncio.create_task(self._cancel(job_id), name=f"cancel abandoned {job_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        """Wait until each job is cancelled or was not found for `period_s` seconds."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _cancel(self, job_id: str) -> None:
        pause_s = self._first_pause_s
        deadline = asyncio.get_running_loop().time() + self._period_s
        while asyncio.get_running_loop().time() < deadline:
            if await self._try(job_id):
                logger.warning("abandoned job cancelled", extra=_fields(job_id))
                return
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        logger.info("abandoned job not found in the log", extra=_fields(job_id))

    async def _try(self, job_id: str) -> bool:
        """Cancel the job. Returns False if the log lacks the job or a service error occurs."""
        try:
            job = fold(await self._log.read(job_id))
            if job is None:
                return False
            await self._writer.execute(Cancel(), job)
            await self._queue.remove(job.submitted.endpoint, job.submitted.lane, job_id)
        except ServiceError as error:
            fields = _fields(job_id) | {"error": str(error)}
            logger.info("abandoned job cannot be cancelled yet", extra=fields)
            return False
        return True


def _fields(job_id: str) -> dict[str, str]:
    return {"action": "cancel_abandoned", "job_id": job_id}
