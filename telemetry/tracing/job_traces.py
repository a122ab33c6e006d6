"""JobTraces: the trace of each job that has ended, as the projection comes to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from events.errors import LogUnavailable, ReadTimeout
from events.job import fold
from events.log import EventLog, utc_now
from events.store.batch import Step
from telemetry.tracing.exporter import SpanExporter
from telemetry.tracing.ids import TraceIds
from telemetry.tracing.spans import job_spans

logger = logging.getLogger(__name__)

_MOST_WAITING = 10_000
"""Jobs whose events are to be read again. Others have no trace."""


class JobTraces:
    """Reads the events of an ended job once more: the projection keeps only what comes of them."""

    def __init__(
        self, log: EventLog, exporter: SpanExporter, *, now: Callable[[], datetime] = utc_now
    ) -> None:
        self._log = log
        self._exporter = exporter
        self._now = now
        self._ended = asyncio.Queue[tuple[str, datetime]](_MOST_WAITING)

    def note(self, steps: Sequence[Step]) -> None:
        """Of what was folded and committed just now. Never waits."""
        now = self._now()
        for step in steps:
            job, before = step.after, step.before
            has_ended = before is not None and before.end is None and job.end is not None
            is_wanted = has_ended and not job.erased and TraceIds.of(job).is_sampled
            if is_wanted and not self._ended.full():
                self._ended.put_nowait((job.id, now))

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            job_id, projected_at = await self._ended.get()
            fields = {"action": "trace", "job_id": job_id}
            try:
                await self._tell(job_id, projected_at)
            except (LogUnavailable, ReadTimeout) as error:
                logger.info("no trace of a job", extra={**fields, "error": str(error)})
            except Exception:  # whatever its events hold, the role goes on
                logger.exception("no trace of a job", extra=fields)

    async def _tell(self, job_id: str, projected_at: datetime) -> None:
        """Nothing where it is gone by now, as one that was erased."""
        history = await self._log.read(job_id)
        job = fold(history)
        if job is not None and job.end is not None and not job.erased:
            self._exporter.add(job_spans(job, history, projected_at=projected_at))
