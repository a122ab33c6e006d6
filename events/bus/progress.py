"""Progress of running jobs on core NATS, from job actors to HTTP replicas. It is never stored."""

from __future__ import annotations

import json
from collections import OrderedDict

from events.bus.bus import Bus
from events.bus.puller import Message
from events.bus.streams import PROGRESS_WILDCARD, job_id_in, progress_subject
from events.errors import LogUnavailable
from events.retry import keep_trying


class ProgressReporter:
    """Tells how far running jobs are, to whoever listens now."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def report(self, job_id: str, *, done: int, total: int) -> None:
        """`done` of `total` sampler steps. Is lost where there is no connection."""
        data = json.dumps({"done": done, "total": total}).encode()
        await self._bus.publish(progress_subject(job_id), data)


class ProgressBoard:
    """The latest progress of the jobs that were heard of last."""

    def __init__(self, bus: Bus, *, max_jobs: int = 10_000) -> None:
        self._bus = bus
        self._max_jobs = max_jobs
        self._latest: OrderedDict[str, float] = OrderedDict()

    def get(self, job_id: str) -> float | None:
        """Part of the steps that is done, 0..1; None where nothing was heard."""
        return self._latest.get(job_id)

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._bus.wait_connected()
        await keep_trying(self._listen, on=LogUnavailable, first_pause_s=1, longest_pause_s=1)

    async def _listen(self) -> None:
        async with self._bus.subscribe(PROGRESS_WILDCARD) as feed:
            while True:
                self._note(await feed.get())

    def _note(self, message: Message) -> None:
        try:
            said = json.loads(message.data)
            progress = min(max(said["done"] / said["total"], 0.0), 1.0)
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            return
        job_id = job_id_in(message.subject)
        self._latest[job_id] = progress
        self._latest.move_to_end(job_id)
        if len(self._latest) > self._max_jobs:
            self._latest.popitem(last=False)
