"""Where the time of a completed job went, as a header (https://www.w3.org/TR/server-timing/)."""

from __future__ import annotations

from events.job import Job
from events.types import Completed


def server_timing(job: Job) -> dict[str, str]:
    """The header `Server-Timing`: its stages in milliseconds. None where nobody measured them."""
    if not isinstance(job.end, Completed) or job.end.timing is None:
        return {}
    if job.started_at is None or job.ended_at is None:
        return {}
    queue_s = (job.started_at - job.submitted_at).total_seconds()
    total_s = (job.ended_at - job.submitted_at).total_seconds()
    times_s = {"queue": queue_s, **job.end.timing.stage_s, "total": total_s}
    metrics = [f"{name};dur={1000 * seconds:.1f}" for name, seconds in times_s.items()]
    if (rows := job.end.timing.rows_per_call) is not None:
        metrics.append(f'batch;desc="{rows:g} rows a call"')
    return {"Server-Timing": ", ".join(metrics)}
