"""QueuePositions: the positions of waiting jobs in their queues, and estimates of their start."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from events.bus.queues import JobQueue
from events.errors import LogUnavailable
from events.job import Job
from serve_app.access.ttl_cache import TtlCache

_TTL_S = 1.0
_MOST_SEEN = 256
"""The positions of this many first jobs of a queue are read together; others are read singly."""
_SHARE = 0.1
"""The largest share of a replica's time for single reads, which are slow on a long queue."""

StatusOf = Callable[[str], Awaitable[Mapping[str, Any] | None]]
"""Returns the status of an endpoint's dispatcher; None if the dispatcher does not answer."""


@dataclass(frozen=True, slots=True)
class QueuePosition:
    position: int
    """The position by time of submission, from 1. Later jobs of other owners may start earlier."""
    starts_in_s: float | None
    """Estimated seconds until the job starts; None if the speed of the endpoint is unknown."""

    def as_members(self) -> dict[str, float | None]:
        return {"queue_position": self.position, "starts_in_s": self.starts_in_s}


class QueuePositions:
    """Finds the position of a waiting job in its queue. Positions are cached for one second."""

    def __init__(self, queue: JobQueue, status_of: StatusOf) -> None:
        self._queue = queue
        self._status_of = status_of
        self._first: TtlCache[dict[str, int]] = TtlCache(self._load_first, ttl_s=_TTL_S)
        self._ahead: TtlCache[int] = TtlCache(self._load_ahead, ttl_s=_TTL_S)
        self._next_look = 0.0

    async def of(self, job: Job) -> QueuePosition | None:
        """Return the queue position of a job.

        Returns None if the job has started or is not queued yet, if the queue is unavailable, or if
        the limit for single reads is reached.
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
        return QueuePosition(position, round(position / rate_per_s, 1) if rate_per_s else None)

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
