"""A job's lease on its queue entry, and the fence in front of every renewal.

Holding an entry is no fence: whoever holds an earlier delivery can still renew or acknowledge the
next one. So before every renewal the holder reads the job's last event, and stops if the job has
ended or another actor has started it. The same read notices a request to cancel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

from events.job import Job
from events.log import EventLog, JobWriter
from events.queue import QueueEntry


class Loss(StrEnum):
    """Why a lease was not renewed."""

    NOT_MINE = "another actor has the job, or it has ended"
    CANCELLED = "the caller asked to cancel"
    DEADLINE = "the job's time is up"
    SILENT = "the engine does not answer"


class Lease:
    def __init__(
        self,
        *,
        log: EventLog,
        writer: JobWriter,
        entry: QueueEntry,
        actor: str,
        renew_s: float,
    ) -> None:
        self._log = log
        self._writer = writer
        self.entry = entry
        """As it was last delivered: a holder that outlived its lease is given the next delivery."""
        self._actor = actor
        self._renew_s = renew_s

    async def keep(
        self, job: Job, *, is_silent: Callable[[], bool], seconds_left: Callable[[], float]
    ) -> Loss:
        """Renew until there is a reason to stop; that reason.

        `job` is as it was just now, so there is no look at the log before the first renewal.
        """
        checked, is_due = job, False
        while True:
            if seconds_left() <= 0:
                return Loss.DEADLINE
            if is_silent():
                return Loss.SILENT
            started = time.monotonic()
            if is_due:
                found = await self._look(checked)
                if isinstance(found, Loss):
                    return found
                checked = found
            is_due = True
            await self.entry.renew()
            elapsed = time.monotonic() - started
            await asyncio.sleep(min(max(self._renew_s - elapsed, 0), max(seconds_left(), 0)))

    async def _look(self, before: Job) -> Job | Loss:
        """The job as it is now, or why it is lost."""
        last = await self._log.last(before.id)
        if last is None:
            return Loss.NOT_MINE
        if last.version == before.version:
            return before
        job = await self._writer.load(before.id)
        if job is None or job.end is not None or job.actor != self._actor:
            return Loss.NOT_MINE
        return Loss.CANCELLED if job.cancel_requested else job
