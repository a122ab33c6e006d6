"""Jobs on a queue and a log in memory: the base of the scheduler's test benches."""

from __future__ import annotations

from typing import Any

from events.decisions import Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter
from events.types import Failed
from tests.support.events import submitted
from tests.support.memory.log import MemoryLog
from tests.support.memory.queues import MemoryJobQueue

LANE = 3


class JobsBench:
    def __init__(
        self, *, queue: MemoryJobQueue | None = None, writer: JobWriter | None = None
    ) -> None:
        self.queue = queue or MemoryJobQueue()
        self.writer = writer or JobWriter(MemoryLog())

    async def submit(self, *, endpoint: str = "default", lane: int = LANE, **changes: Any) -> str:
        """Submit a job and put it on the queue, as API and router do."""
        job_id = new_id()
        data = submitted(endpoint=endpoint, lane=lane, **changes)
        outcome = await self.writer.submit(job_id, Submit(data))
        assert outcome.job is not None
        await self.queue.add(endpoint, lane, job_id, deadline=outcome.job.due_at)
        return job_id

    async def job(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job

    async def failure(self, job_id: str) -> Failed:
        """How a job failed that has ended."""
        end = (await self.job(job_id)).end
        assert isinstance(end, Failed), end
        return end
