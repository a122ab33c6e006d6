"""What is told of a run to whoever watches its job, from what the engine reports."""

from __future__ import annotations

from typing import Protocol

from engine.reports import Progress
from events.wire.progress import JobProgress


class ReportProgress(Protocol):
    """Tells whoever listens how far a job is. Raises nothing."""

    async def __call__(self, job_id: str, progress: JobProgress) -> None: ...


def job_progress(progress: Progress) -> JobProgress:
    """What an engine reports, in the form in which it is told."""
    return JobProgress(
        done=progress.done,
        total=max(progress.total, 1),
        node=progress.node_id or None,
        class_type=progress.class_type or None,
        rows=progress.rows,
        images=progress.images,
        preview=progress.preview,
    )
