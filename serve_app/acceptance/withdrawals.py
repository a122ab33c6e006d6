"""Cancels jobs whose callers cannot find them again."""

from __future__ import annotations

import asyncio
import logging
import random

from events.decisions import Cancel
from events.errors import ServiceError
from events.job import fold
from events.log import EventLog, JobWriter
from events.queue import JobQueue

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 15.0


class Withdrawals:
    """A caller without an idempotency key who got no answer cannot find the job: it must not run.

    The log is read until the job is there or `period_s` is over: an append that is still under way
    may be stored after the log has answered that there is no such job.
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

    def schedule(self, job_id: str) -> None:
        task = asyncio.create_task(self._withdraw(job_id), name=f"withdraw {job_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def join(self) -> None:
        """Wait until each job is cancelled or given up."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _withdraw(self, job_id: str) -> None:
        pause_s = self._first_pause_s
        deadline = asyncio.get_running_loop().time() + self._period_s
        while asyncio.get_running_loop().time() < deadline:
            if await self._try(job_id):
                logger.warning("submission withdrawn", extra=_fields(job_id))
                return
            await asyncio.sleep(pause_s * random.uniform(0.8, 1.2))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        logger.info("submission not found in the log", extra=_fields(job_id))

    async def _try(self, job_id: str) -> bool:
        """True once the job is there and cancelled."""
        try:
            job = fold(await self._log.read(job_id))
            if job is None:
                return False
            await self._writer.execute(Cancel(), job)
            await self._queue.remove(job.submitted.endpoint, job.submitted.lane, job_id)
        except ServiceError as error:
            logger.info(
                "withdrawal not yet possible", extra=_fields(job_id) | {"error": str(error)}
            )
            return False
        return True


def _fields(job_id: str) -> dict[str, str]:
    return {"action": "withdraw", "job_id": job_id}
