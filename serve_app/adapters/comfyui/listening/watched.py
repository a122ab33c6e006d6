"""The jobs of one client, and what it is told of them as they go on."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from events.types import Cancelled, Completed, Erased, Event, Failed, Started, Submitted
from events.wire.progress import JobProgress
from serve_app.adapters.comfyui.listening.messages import (
    Message,
    executing,
    of_job,
    picture,
    picture_of,
    progress,
)

_MOST_JOBS = 1000
_JPEG = "image/jpeg"


@dataclass(slots=True)
class _Running:
    is_started: bool = False
    node: str | None = None
    """The one under way, as far as was told."""
    class_type: str = ""
    news: JobProgress | None = None
    """What was not told yet: the newest alone."""
    preview: bytes | None = field(default=None, repr=False)


class WatchedJobs:
    """Those that were submitted under one client id: the last of them, if they are many."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._jobs: OrderedDict[str, _Running] = OrderedDict()
        self.has_metadata = False
        """Whether the client reads previews with metadata."""

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._jobs

    def add(self, job_id: str) -> None:
        self._jobs.setdefault(job_id, _Running())
        if len(self._jobs) > _MOST_JOBS:
            self._jobs.popitem(last=False)

    def place(self, job_id: str) -> tuple[str, str]:
        """Node and class at which a job is; empty where that is not known."""
        job = self._jobs.get(job_id, _Running())
        return job.node or "", job.class_type

    def note_progress(self, job_id: str, said: JobProgress) -> bool:
        """It waits for `told`. False for a job of somebody else."""
        job = self._jobs.get(job_id)
        if job is None:
            return False
        job.news = said
        job.preview = said.preview or job.preview
        return True

    def begin(self, job_id: str) -> list[Message]:
        """The job runs, whenever that began."""
        job = self._jobs[job_id]
        if job.is_started:
            return []
        job.is_started = True
        return [of_job("execution_start", job_id), of_job("execution_cached", job_id, nodes=[])]

    def take(self, event: Event) -> list[Message]:
        """What follows from an event that is no end, for the client."""
        match event.data:
            case Submitted(client_id=self._client_id):
                self.add(event.job_id)
            case Started() if event.job_id in self._jobs:
                return self.begin(event.job_id)
            case _:
                pass
        return []

    def is_end(self, event: Event) -> bool:
        """Of one of its jobs."""
        is_one = isinstance(event.data, Completed | Failed | Cancelled | Erased)
        return is_one and event.job_id in self._jobs

    def has_started(self, job_id: str) -> bool:
        return self._jobs[job_id].is_started

    def forget(self, job_id: str) -> None:
        del self._jobs[job_id]

    def told(self) -> list[Message]:
        """What its jobs have said since the last time."""
        messages: list[Message] = []
        for job_id, job in self._jobs.items():
            if job.news is not None:
                messages += self.begin(job_id) + self._progress(job_id, job, job.news)
                job.news = job.preview = None
        return messages

    def _progress(self, job_id: str, job: _Running, said: JobProgress) -> list[Message]:
        if not said.node:
            return []
        messages: list[Message] = []
        if said.node != job.node:
            job.node, job.class_type = said.node, said.class_type or ""
            messages.append(executing(job_id, job.node))
        messages += progress(job_id, said.node, said)
        if job.preview is not None:
            messages.append(
                picture_of(job_id, said.node, job.preview, _JPEG)
                if self.has_metadata
                else picture(job.preview, _JPEG)
            )
        return messages
