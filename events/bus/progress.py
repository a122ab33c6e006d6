"""Progress of running jobs on core NATS, from job actors to HTTP replicas. It is never stored."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from events.bus.bus import Bus
from events.bus.puller import Message
from events.bus.streams import PROGRESS_WILDCARD, job_id_in, progress_subject
from events.errors import LogUnavailable
from events.retry import keep_trying
from events.wire.progress import JobProgress, MalformedProgress, decode_progress


class ProgressReporter:
    """Tells how far running jobs are, to whoever listens now."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def report(self, job_id: str, progress: JobProgress) -> None:
        """Is lost where there is no connection."""
        await self._bus.publish(progress_subject(job_id), progress.encode())


class ProgressBoard:
    """The latest progress of the jobs that were heard of last."""

    def __init__(self, bus: Bus, *, max_jobs: int = 10_000) -> None:
        self._bus = bus
        self._max_jobs = max_jobs
        self._latest: OrderedDict[str, JobProgress] = OrderedDict()
        self.listeners: list[Callable[[str, JobProgress], None]] = []
        """Called with all that is heard, as it is heard."""

    def get(self, job_id: str) -> JobProgress | None:
        """None where nothing was heard."""
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
            progress = decode_progress(message.data)
        except MalformedProgress:
            return
        job_id = job_id_in(message.subject)
        self._latest[job_id] = replace(progress, preview=None)
        self._latest.move_to_end(job_id)
        if len(self._latest) > self._max_jobs:
            self._latest.popitem(last=False)
        for listener in self.listeners:
            listener(job_id, progress)
