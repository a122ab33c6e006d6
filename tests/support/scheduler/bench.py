"""A dispatcher of one endpoint on a queue, a log and a cluster in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from actors.scheduler.endpoint_dispatcher import EndpointDispatcher
from actors.scheduler.fairness import RunningJobs
from actors.scheduler.pool import PoolLimits, WorkerPool
from actors.scheduler.slots import SlotNumbers
from actors.scheduler.status import EndRate
from actors.worker.job_actor import RunOutcome
from events.decisions import Start
from events.job import Job
from events.log import JobWriter, utc_now
from events.store.records import Endpoint
from settings.keys import OwnerSettings
from tests.support.failing_log import FailingLog
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually, running
from tests.support.scheduler.cluster import FakeCluster, FakeJobActor
from tests.support.scheduler.jobs import JobsBench

PREFIX = "worker:default:r-1:"
WORKER = f"{PREFIX}0"
LEASE_S = 0.3
SECRET = b"a secret for the tests"


class Bench(JobsBench):
    """A dispatcher of one endpoint, with its queue, log and cluster."""

    def __init__(self, *, lease_s: float = LEASE_S) -> None:
        self.log = FailingLog()
        super().__init__(queue=MemoryJobQueue(lease_s=lease_s), writer=JobWriter(self.log))
        self.cluster = FakeCluster()
        self._lease_s = lease_s

    @asynccontextmanager
    async def dispatching(
        self,
        *,
        slots: int = 1,
        slots_kept_free: int = 0,
        max_running_jobs: int = 0,
        max_dispatch_failures: int = 5,
        jobs_per_actor: int = 100,
    ) -> AsyncIterator[EndpointDispatcher]:
        owners = OwnerSettings(slots_kept_free=slots_kept_free, max_running_jobs=max_running_jobs)
        endpoint = Endpoint("default", jobs_per_worker=slots)
        pool = WorkerPool(
            endpoint,
            prefix=PREFIX,
            cluster=self.cluster,
            idle_s=1000,
            limits=PoolLimits(period_s=0.01),
            jobs_per_actor=jobs_per_actor,
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
            end_rate=EndRate(),
            secret=SECRET,
            lease_s=self._lease_s,
            expiry_period_s=0.02,
            max_dispatch_failures=max_dispatch_failures,
        )
        async with running(dispatcher.run()):
            yield dispatcher

    async def start(self, job_id: str, actor: FakeJobActor) -> None:
        """Start a job as a job actor does."""
        command = Start(actor.writer, max_attempts=3, max_attempts_total=9, now=utc_now())
        await self.writer.execute(command, await self.job(job_id))

    async def begun(self, job_id: str) -> FakeJobActor:
        """The actor that runs the job, which it has started."""
        actor = await self.running(job_id)
        await self.start(job_id, actor)
        return actor

    async def running(self, job_id: str) -> FakeJobActor:
        return await self.next_actor(job_id)

    async def next_actor(self, job_id: str, *seen: FakeJobActor) -> FakeJobActor:
        """Wait until an actor that is not in `seen` runs the job."""

        def another() -> FakeJobActor | None:
            others = (each for each in self.cluster.actors.values() if each not in seen)
            return next((each for each in others if each.job_id == job_id), None)

        return await eventually(another)

    async def finish(self, job_id: str, outcome: RunOutcome = RunOutcome.COMPLETED) -> None:
        """End a job's run as its actor does: it acknowledges the entry before it answers."""
        actor = await self.running(job_id)
        await actor.entries[-1].ack()
        actor.finish(outcome)

    async def is_queued(self, job_id: str) -> bool:
        return job_id in await self.queue.job_ids()

    async def is_gone(self, job_id: str) -> None:
        """Wait until the job has no entry."""

        async def has_left() -> bool:
            return not await self.is_queued(job_id)

        await eventually(has_left)

    async def ended(self, job_id: str) -> Job:
        """Wait until the job has no entry; return what became of it."""
        await self.is_gone(job_id)
        return await self.job(job_id)

    async def settled(self) -> None:
        """Wait until the workers were looked at a few times more."""
        engine = await eventually(lambda: self.cluster.engines.get(WORKER))
        asked = engine.asked
        await eventually(lambda: engine.asked > asked + 3)
