"""What jobs look like on their way, for those who ask now and then instead of watching."""

from __future__ import annotations

from collections import OrderedDict

from events.wire.progress import JobProgress
from serve_app.services import ProgressBoard

_MOST_JOBS = 64


class LatestPreviews:
    """The newest preview of the jobs heard of last. Nothing is kept before the first question."""

    def __init__(self, progress: ProgressBoard) -> None:
        self._progress = progress
        self._latest: OrderedDict[str, bytes] | None = None

    def of(self, job_id: str) -> bytes | None:
        """A JPEG; None where there is none yet. Of no job it keeps what is heard from now on."""
        if self._latest is None:
            self._latest = OrderedDict()
            self._progress.listeners.append(self._note)
        if job_id:
            self._progress.get(job_id)  # so that it is heard of
        return self._latest.get(job_id)

    def _note(self, job_id: str, progress: JobProgress) -> None:
        assert self._latest is not None  # it listens once there is a place
        if progress.preview is None:
            return
        self._latest[job_id] = progress.preview
        self._latest.move_to_end(job_id)
        if len(self._latest) > _MOST_JOBS:
            self._latest.popitem(last=False)
