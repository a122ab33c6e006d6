"""What running jobs are said to do, for streams in the forms of other protocols."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from events.wire.progress import JobProgress
from serve_app.services import ProgressBoard


@dataclass
class Newest:
    """Of one job; what comes takes the place of what was there before."""

    job_id: str
    progress: JobProgress | None = None
    preview: bytes | None = field(default=None, repr=False)

    def note(self, job_id: str, progress: JobProgress) -> None:
        if job_id == self.job_id:
            self.progress = progress
            self.preview = progress.preview or self.preview

    def take(self) -> tuple[JobProgress | None, bytes | None]:
        """What has come since it was asked last."""
        taken = self.progress, self.preview
        self.progress = self.preview = None
        return taken


@contextmanager
def newest_of(board: ProgressBoard, job_id: str) -> Generator[Newest]:
    """Follows a job for as long as the context lasts."""
    newest = Newest(job_id)
    board.listeners.append(newest.note)
    try:
        with board.watching(job_id):
            yield newest
    finally:
        board.listeners.remove(newest.note)
