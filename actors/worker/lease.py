"""A job's lease on its queue entry, and the fence in front of every renewal.

An ack subject is no fence: whoever holds an old one can still renew or ack the new delivery. So
before every renewal the holder reads the job's last event, and stops where the job has ended or
another actor has started it. The same read notices a request to cancel.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum

from events.bus.connection import Bus
from events.job import Job
from events.log import EventLog, JobWriter


class Loss(StrEnum):
    """Why a lease was not renewed."""

    NOT_MINE = "another actor has the job, or it has ended"
    CANCELLED = "the caller asked to cancel"
    DEADLINE = "the job's time is up"
    WEDGED = "the engine makes no progress"


class Lease:
    def __init__(
        self,
        *,
        bus: Bus,
        log: EventLog,
        writer: JobWriter,
        ack_subject: str,
        actor: str,
        renew_s: float,
    ) -> None:
        self._bus = bus
        self._log = log
        self._writer = writer
        self.ack_subject = ack_subject
        """Of the latest delivery: a holder that lived when its lease ran out is given the next."""
        self._actor = actor
        self._renew_s = renew_s

    async def keep(
        self, job: Job, *, is_wedged: Callable[[], bool], seconds_left: Callable[[], float]
    ) -> Loss:
        """Renew until there is a reason to stop; that reason."""
        checked = job
        while True:
            if seconds_left() <= 0:
                return Loss.DEADLINE
            if is_wedged():
                return Loss.WEDGED
            started = time.monotonic()
            last = await self._log.last(job.id)
            if last is None:
                return Loss.NOT_MINE
            if last.version != checked.version:
                read = await self._writer.load(job.id)
                if read is None or read.end is not None or read.actor != self._actor:
                    return Loss.NOT_MINE
                if read.cancel_requested:
                    return Loss.CANCELLED
                checked = read
            await self._bus.renew(self.ack_subject)
            elapsed = time.monotonic() - started
            await asyncio.sleep(min(max(self._renew_s - elapsed, 0), max(seconds_left(), 0)))
