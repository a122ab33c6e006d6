"""Where jobs stand that wait, and when they may begin."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from events.errors import LogUnavailable
from events.job import Job
from events.queue import JobQueue
from serve_app.access.ttl_cache import TtlCache

_TTL_S = 1.0
_MOST_SEEN = 256
"""Jobs at the head of a queue, whose places are read together. Later ones are asked for alone."""
_SHARE = 0.1
"""How much of the time goes into those at most: on a long queue each takes the server long."""

StatusOf = Callable[[str], Awaitable[Mapping[str, Any] | None]]
"""What its dispatcher says of an endpoint; None where none answers."""


@dataclass(frozen=True, slots=True)
class QueuePlace:
    position: int
    """1 is the next one, in the order of submission; owners take turns, so others may go first."""
    starts_in_s: float | None
    """By how many jobs of the endpoint ended lately; None where none did."""

    def told(self) -> dict[str, float | None]:
        """As members of a result."""
        return {"queue_position": self.position, "starts_in_s": self.starts_in_s}


class QueuePlaces:
    """Each is remembered for a second."""

    def __init__(self, queue: JobQueue, status_of: StatusOf) -> None:
        self._queue = queue
        self._status_of = status_of
        self._first: TtlCache[dict[str, int]] = TtlCache(self._load_first, ttl_s=_TTL_S)
        self._ahead: TtlCache[int] = TtlCache(self._load_ahead, ttl_s=_TTL_S)
        self._next_look = 0.0

    async def of(self, job: Job) -> QueuePlace | None:
        """None for a job that has begun, or has no place yet, and while the queue is away or has
        been asked too often.
        """
        if job.end is not None or job.started_at is not None:
            return None
        submitted = job.submitted
        try:
            first = await self._first.get(submitted.endpoint) or {}
            ahead = first.get(job.id)
            if ahead is None and len(first) == _MOST_SEEN:
                ahead = await self._ahead.get(f"{submitted.endpoint}.{submitted.lane}.{job.id}")
            if ahead is None:
                return None
            status = await self._status_of(submitted.endpoint) or {}
        except LogUnavailable:
            return None
        running = sum(worker.get("running", 0) for worker in status.get("workers") or ())
        position = max(ahead - running, 0) + 1
        rate_per_s = status.get("rate_per_s")
        return QueuePlace(position, round(position / rate_per_s, 1) if rate_per_s else None)

    async def _load_first(self, endpoint: str) -> dict[str, int]:
        entries = await self._queue.queued(endpoint, after=0, most=_MOST_SEEN)
        return {entry.job_id: place for place, entry in enumerate(entries)}

    async def _load_ahead(self, name: str) -> int | None:
        if (began := time.monotonic()) < self._next_look:
            return None
        self._next_look = math.inf
        endpoint, lane, job_id = name.split(".")
        try:
            return await self._queue.ahead(endpoint, int(lane), job_id)
        finally:
            ended = time.monotonic()
            self._next_look = ended + (ended - began) * (1 / _SHARE - 1)
