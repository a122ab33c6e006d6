"""Sends the progress of running jobs over core NATS, from job actors to HTTP replicas."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from events.bus.bus import Bus
from events.bus.puller import Message
from events.bus.streams import PROGRESS_WILDCARD, job_id_in, progress_subject
from events.errors import LogUnavailable
from events.job_progress import JobProgress, MalformedProgress, decode_progress
from events.retry import keep_trying

_ASKED_S = 60.0
"""Seconds for which a query keeps the subscription to a job. Most callers query more often."""
_MOST_SUBJECTS = 512
"""The largest number of subscriptions. For more jobs, one subscription to all jobs is cheaper."""


class ProgressReporter:
    """Publishes the progress of running jobs to current subscribers."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def report(self, job_id: str, progress: JobProgress) -> None:
        """Publish the progress of a job, if there is a connection."""
        await self._bus.publish(progress_subject(job_id), progress.encode())


class ProgressBoard:
    """The latest progress of the jobs that are queried or watched in this process.

    The board subscribes to these jobs only. With many workers, most progress messages are about
    other jobs, and may include preview images.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        max_jobs: int = 10_000,
        asked_s: float = _ASKED_S,
        most_subjects: int = _MOST_SUBJECTS,
    ) -> None:
        """The subscription to a job lasts `asked_s` seconds after `get`.

        For more than `most_subjects` jobs, there is one subscription to all jobs.
        """
        self._bus = bus
        self._max_jobs = max_jobs
        self._asked_s = asked_s
        self._most_subjects = most_subjects
        self._latest: OrderedDict[str, JobProgress] = OrderedDict()
        self._watched: Counter[str] = Counter()
        self._asked: OrderedDict[str, float] = OrderedDict()
        """The times at which the subscriptions after `get` end, by job id and in order."""
        self._changed = asyncio.Event()
        self._listening: dict[str, asyncio.Task[None]] = {}
        self.listeners: list[Callable[[str, JobProgress], None]] = []
        """Functions that are called with each progress message."""

    def get(self, job_id: str) -> JobProgress | None:
        """Return the last progress of a job, or None, and subscribe to the job for some time."""
        is_new = job_id not in self._asked
        self._asked[job_id] = time.monotonic() + self._asked_s
        self._asked.move_to_end(job_id)
        if is_new:
            self._changed.set()
        if len(self._asked) > self._max_jobs:
            self._asked.popitem(last=False)
        return self._latest.get(job_id)

    @contextmanager
    def watching(self, job_id: str | None = None) -> Generator[None]:
        """Subscribe to this job, or to all jobs, until the end of the context."""
        subject = PROGRESS_WILDCARD if job_id is None else progress_subject(job_id)
        self._watched[subject] += 1
        self._changed.set()
        try:
            yield
        finally:
            self._watched[subject] -= 1
            if not self._watched[subject]:
                del self._watched[subject]
                self._changed.set()

    async def run(self) -> None:
        """Open and close subscriptions for the wanted jobs until cancelled."""
        await self._bus.wait_connected()
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                self._forget_asked()
                wanted = self._wanted()
                for subject in wanted - self._listening.keys():
                    self._listening[subject] = group.create_task(self._keep_listening(subject))
                for subject in self._listening.keys() - wanted:
                    self._listening.pop(subject).cancel()
                await self._wait()

    async def _wait(self) -> None:
        """Wait until the set of wanted jobs may have changed."""
        until = next(iter(self._asked.values()), None)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else until - time.monotonic()):
                await self._changed.wait()

    def _forget_asked(self) -> None:
        now = time.monotonic()
        while self._asked and next(iter(self._asked.values())) <= now:
            self._asked.popitem(last=False)

    def _wanted(self) -> set[str]:
        if PROGRESS_WILDCARD in self._watched or len(self._asked) > self._most_subjects:
            return {PROGRESS_WILDCARD}
        subjects = self._watched.keys() | set(map(progress_subject, self._asked))
        return subjects if len(subjects) <= self._most_subjects else {PROGRESS_WILDCARD}

    async def _keep_listening(self, subject: str) -> None:
        listen = partial(self._listen, subject)
        await keep_trying(listen, on=LogUnavailable, first_pause_s=1, longest_pause_s=1)

    async def _listen(self, subject: str) -> None:
        async with self._bus.subscribe(subject) as feed:
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
