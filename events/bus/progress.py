"""Progress of running jobs on core NATS, from job actors to HTTP replicas. It is never stored."""

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
from events.retry import keep_trying
from events.wire.progress import JobProgress, MalformedProgress, decode_progress

_ASKED_S = 60.0
"""How long a job is heard of after somebody asked how far it is: most ask again, and soon."""
_MOST_SUBJECTS = 512
"""Where more jobs than that are wanted at once, one subscription to all of them is cheaper."""


class ProgressReporter:
    """Tells how far running jobs are, to whoever listens now."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def report(self, job_id: str, progress: JobProgress) -> None:
        """Is lost where there is no connection."""
        await self._bus.publish(progress_subject(job_id), progress.encode())


class ProgressBoard:
    """The latest progress of jobs, of which only those are heard of that somebody here looks at.

    Of many workers most is told of others, previews included.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        max_jobs: int = 10_000,
        asked_s: float = _ASKED_S,
        most_subjects: int = _MOST_SUBJECTS,
    ) -> None:
        """`asked_s`: how long a job is heard of after `get`. With more wanted jobs than
        `most_subjects` all jobs are.
        """
        self._bus = bus
        self._max_jobs = max_jobs
        self._asked_s = asked_s
        self._most_subjects = most_subjects
        self._latest: OrderedDict[str, JobProgress] = OrderedDict()
        self._watched: Counter[str] = Counter()
        """By subject."""
        self._asked: OrderedDict[str, float] = OrderedDict()
        """Until when a job is wanted by whom asked for it, those that end first before others."""
        self._changed = asyncio.Event()
        self._hearing: dict[str, asyncio.Task[None]] = {}
        """By subject."""
        self.listeners: list[Callable[[str, JobProgress], None]] = []
        """Called with all that is heard, as it is heard."""

    def get(self, job_id: str) -> JobProgress | None:
        """The last that was heard, if anything; from now on the job is heard of for some time."""
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
        """Hear of this job, or of all jobs, for as long as the context lasts."""
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
        """Listen to what is wanted, until cancelled."""
        await self._bus.wait_connected()
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                self._forget_asked()
                wanted = self._wanted()
                for subject in wanted - self._hearing.keys():
                    self._hearing[subject] = group.create_task(self._hear(subject))
                for subject in self._hearing.keys() - wanted:
                    self._hearing.pop(subject).cancel()
                await self._wait()

    async def _wait(self) -> None:
        """Until something else may be wanted."""
        until = next(iter(self._asked.values()), None)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if until is None else until - time.monotonic()):
                await self._changed.wait()

    def _forget_asked(self) -> None:
        now = time.monotonic()
        while self._asked and next(iter(self._asked.values())) <= now:
            self._asked.popitem(last=False)

    def _wanted(self) -> set[str]:
        """Subjects."""
        if PROGRESS_WILDCARD in self._watched or len(self._asked) > self._most_subjects:
            return {PROGRESS_WILDCARD}
        subjects = self._watched.keys() | set(map(progress_subject, self._asked))
        return subjects if len(subjects) <= self._most_subjects else {PROGRESS_WILDCARD}

    async def _hear(self, subject: str) -> None:
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
