"""What every log line says that is written while a job is worked on."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from events.job import Job
from telemetry.tracing.ids import TraceIds

_NONE: Mapping[str, str] = {}
_fields: ContextVar[Mapping[str, str]] = ContextVar("log_fields", default=_NONE)


@contextmanager
def about(job: Job) -> Generator[None]:
    """Lines of this task, and of tasks that it starts inside, tell of this job."""
    token = _fields.set(
        {
            "job_id": job.id,
            "endpoint": job.submitted.endpoint,
            "trace_id": TraceIds.of(job).trace,
        }
    )
    try:
        yield
    finally:
        _fields.reset(token)


def job_fields() -> Mapping[str, str]:
    """Of the job that is worked on; none where no job is."""
    return _fields.get()
