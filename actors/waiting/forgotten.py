"""Forgotten: puts entries on the queue again that nobody was delivered for a long time.

A log server that was killed under load has come back with an entry that it delivered no more, for a
reason that is not known. Its job would wait until its time is over. Whatever the reason: a job that
waits by its events, and is neither in hand nor on a worker here for longer than anybody may hold an
entry, gets a new one. Should it get two, its events decide who runs it, as ever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from events.errors import JobUnreadable, LogUnavailable, ReadTimeout
from events.log import JobWriter
from events.queue import JobQueue, QueuedJob
from events.retry import keep_trying

logger = logging.getLogger(__name__)

_PAGE = 256
_LOOKS = 3
"""In the time after which an entry counts as forgotten."""
_PASSING = (LogUnavailable, ReadTimeout)


class Forgotten:
    def __init__(
        self,
        endpoint: str,
        *,
        queue: JobQueue,
        writer: JobWriter,
        is_known: Callable[[str], bool],
        takes_all: Callable[[], bool],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_known`: whether a job, by its id, is in hand or on a worker. `takes_all`: whether all
        that waits is to be in hand, as it is not while there is more than that takes.
        `patience_s`: how long an entry may be nobody's; several times as long as one may be held.
        """
        self._endpoint = endpoint
        self._queue = queue
        self._writer = writer
        self._is_known = is_known
        self._takes_all = takes_all
        self._patience_s = patience_s
        self._clock = clock
        self._missed_since: dict[str, float] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._patience_s / _LOOKS)
            await keep_trying(self.look, on=_PASSING)

    async def look(self) -> None:
        """Raises LogUnavailable, ReadTimeout."""
        missing = await self._missing() if self._takes_all() else []
        now = self._clock()
        self._missed_since = {
            entry.job_id: self._missed_since.get(entry.job_id, now) for entry in missing
        }
        for entry in missing:
            if now - self._missed_since[entry.job_id] >= self._patience_s:
                await self._put_again(entry)
                del self._missed_since[entry.job_id]

    async def _missing(self) -> list[QueuedJob]:
        found: list[QueuedJob] = []
        after = 0
        while page := await self._queue.queued(self._endpoint, after=after, most=_PAGE):
            found += [entry for entry in page if not self._is_known(entry.job_id)]
            after = page[-1].position
        return found

    async def _put_again(self, entry: QueuedJob) -> None:
        try:
            job = await self._writer.load(entry.job_id)
        except JobUnreadable:
            return  # its end is up to whoever is delivered it
        if job is None or job.end is not None:
            await self._queue.remove(self._endpoint, entry.lane, entry.job_id)
        elif not job.is_attempted:
            fields = {"action": "entry_forgotten", "job_id": entry.job_id}
            logger.warning("an entry is put on the queue again", extra=fields)
            await self._queue.put_again(
                self._endpoint, entry.lane, entry.job_id, deadline=entry.deadline
            )
