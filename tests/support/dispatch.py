"""A dispatcher of one endpoint on a queue, a log and a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors.dispatch.endpoint import EndpointDispatcher
from actors.dispatch.pool import WorkerPool
from actors.dispatch.slots import SlotNumbers
from actors.endpoints.pace import Pace
from actors.endpoints.status import EndpointStatus
from actors.waiting.running_jobs import RunningJobs
from actors.worker.job import RunOutcome
from events.decisions import Start, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings
from settings.keys import OwnerSettings
from tests.support.events import submitted
from tests.support.polling import eventually
from tests.support.workers.cluster import FakeCluster, FakeJobActor

PREFIX = "worker:default:r-1:"
WORKER = f"{PREFIX}0"
LEASE_S = 0.3


def _settings(**changes: Any) -> DispatchSettings:
    values = {"endpoints_period_s": 0.01, "worker_idle_s": 1000, "jobs_per_actor": 100}
    values |= {"deadlines_period_s": 0.02, "dispatcher_lease_s": LEASE_S / 2}
    return DispatchSettings(**(values | changes))


class Bench:
    """A dispatcher of one endpoint, with the queue, the log and the cluster that it works on."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.queue = MemoryJobQueue(lease_s=LEASE_S)
        self.log = MemoryLog()
        self.writer = JobWriter(self.log)

    @asynccontextmanager
    async def dispatching(
        self,
        *,
        slots: int = 1,
        slots_kept_free: int = 0,
        max_running_jobs: int = 0,
        max_dispatch_failures: int = 5,
    ) -> AsyncIterator[EndpointDispatcher]:
        owners = OwnerSettings(slots_kept_free=slots_kept_free, max_running_jobs=max_running_jobs)
        endpoint = Endpoint("default", jobs_per_worker=slots)
        settings = _settings(max_dispatch_failures=max_dispatch_failures)
        pool = WorkerPool(
            endpoint,
            prefix=PREFIX,
            cluster=self.cluster,
            settings=settings,
            engine_silence_s=1000,
            slots=SlotNumbers(most=slots, kept_free=slots_kept_free),
            worker_period_s=0.01,
        )
        dispatcher = EndpointDispatcher(
            endpoint,
            queue=self.queue,
            writer=self.writer,
            pool=pool,
            running_jobs=RunningJobs(owners),
            status=EndpointStatus(
                endpoint.id, queue=self.queue, writer=self.writer, pool=pool, pace=Pace()
            ),
            lease_s=LEASE_S,
            settings=settings,
        )
        task = asyncio.create_task(dispatcher.run())
        try:
            yield dispatcher
            assert not task.done(), task
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def submit(self, *, lane: int = 3, **changes: Any) -> str:
        job_id = new_id()
        outcome = await self.writer.submit(job_id, Submit(submitted(lane=lane, **changes)))
        assert outcome.job is not None
        await self.queue.add("default", lane, job_id, deadline=outcome.job.due_at)
        return job_id

    async def start(self, job_id: str, actor: FakeJobActor) -> None:
        """What a job actor does first."""
        command = Start(actor.writer, max_attempts=3, max_attempts_total=9, now=utc_now())
        await self.writer.execute(command, await self.job(job_id))

    async def job(self, job_id: str) -> Job:
        job = await self.writer.load(job_id)
        assert job is not None
        return job

    async def running(self, job_id: str) -> FakeJobActor:
        return await eventually(lambda: self.cluster.running(job_id))

    async def finish(self, job_id: str, outcome: RunOutcome = RunOutcome.COMPLETED) -> None:
        """End a job's run as its actor does: the entry is acknowledged before it answers."""
        actor = await self.running(job_id)
        await actor.entries[-1].ack()
        actor.finish(outcome)

    async def is_queued(self, job_id: str) -> bool:
        return job_id in await self.queue.job_ids()
