"""The progress of running jobs, for streams and protocols."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from events.job_progress import JobProgress

_MOST_JOBS = 64


class ProgressBoard(Protocol):
    """The latest progress that running jobs reported."""

    listeners: list[Callable[[str, JobProgress], None]]
    """Functions that are called with the job id and the progress at each report."""

    def get(self, job_id: str, /) -> JobProgress | None:
        """Return the last report, if any. Reports of the job are then received for some time."""

    def watching(self, job_id: str | None = None, /) -> AbstractContextManager[None]:
        """Receive the reports of this job, or of all jobs, until the context ends."""

    async def run(self) -> None:
        """Receive reports until cancelled."""


@dataclass
class Newest:
    """The newest progress and preview of one job."""

    job_id: str
    progress: JobProgress | None = None
    preview: bytes | None = field(default=None, repr=False)

    def note(self, job_id: str, progress: JobProgress) -> None:
        if job_id == self.job_id:
            self.progress = progress
            self.preview = progress.preview or self.preview

    def take(self) -> tuple[JobProgress | None, bytes | None]:
        """Return and clear the progress and preview received since the previous call."""
        taken = self.progress, self.preview
        self.progress = self.preview = None
        return taken


@contextmanager
def newest_of(board: ProgressBoard, job_id: str) -> Generator[Newest]:
    """Follow the progress of a job until the context ends."""
    newest = Newest(job_id)
    board.listeners.append(newest.note)
    try:
        with board.watching(job_id):
            yield newest
    finally:
        board.listeners.remove(newest.note)


class LatestPreviews:
    """Keeps the newest preview of each running job, beginning with the first call of `of`."""

    def __init__(self, progress: ProgressBoard) -> None:
        self._progress = progress
        self._latest: OrderedDict[str, bytes] | None = None

    def of(self, job_id: str) -> bytes | None:
        """Return the newest preview as a JPEG; None if there is none yet.

        An empty `job_id` only begins to keep previews.
        """
        if self._latest is None:
            self._latest = OrderedDict()
            self._progress.listeners.append(self._note)
        if job_id:
            self._progress.get(job_id)  # From this call on, reports of the job are received.
        return self._latest.get(job_id)

    def _note(self, job_id: str, progress: JobProgress) -> None:
        assert self._latest is not None  # `_latest` is set before this listener is added.
        if progress.preview is None:
            return
        self._latest[job_id] = progress.preview
        self._latest.move_to_end(job_id)
        if len(self._latest) > _MOST_JOBS:
            self._latest.popitem(last=False)
