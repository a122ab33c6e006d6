"""A cluster in memory, for tests of dispatching: its actors do what a test tells them to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from actors.dispatch.cluster import ActorDied, ActorUnavailable, EngineGone
from actors.dispatch.endpoint import EndpointDispatcher
from actors.dispatch.names import slot_number
from actors.dispatch.pool import WorkerPool
from actors.dispatch.running_jobs import RunningJobs
from actors.dispatch.slots import SlotNumbers
from actors.endpoints.pace import Pace
from actors.endpoints.status import EndpointStatus
from actors.worker.engine_host import EngineState
from actors.worker.job import RunOutcome
from engine.activity import ActivityKind
from events.decisions import Start, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from events.queue import QueueEntry
from events.store.records import Endpoint
from settings.dispatch import DispatchSettings
from settings.keys import OwnerSettings
from tests.support.events import submitted
from tests.support.polling import eventually

PREFIX = "worker:default:r-1:"
WORKER = f"{PREFIX}0"
LEASE_S = 0.3


class FakeJobActor:
    """Runs each job until a test ends it."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.writer = f"{name}@{incarnation}"
        self.starts = True
        self.hangs = False
        self.job_id: str | None = None
        self.jobs_run = 0
        self.entries: list[QueueEntry] = []
        """Every delivery that it was given, newest last."""
        self._outcome: asyncio.Future[RunOutcome] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def ready(self) -> str:
        if not self.starts:
            raise ActorUnavailable("it does not start")
        return self.writer

    async def state(self) -> tuple[str | None, int]:
        return self.job_id, self.jobs_run

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def run(self, entry: QueueEntry, job: Job) -> RunOutcome:
        self.begin(entry.job_id)
        self.entries.append(entry)
        assert self._outcome is not None
        return await self._outcome

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        if self.hangs or self.job_id != entry.job_id:
            return False
        self.entries.append(entry)
        return True

    # What a test does.

    def begin(self, job_id: str) -> None:
        self.job_id, self.jobs_run = job_id, self.jobs_run + 1
        self._idle.clear()
        self._outcome = asyncio.get_running_loop().create_future()

    def finish(self, outcome: RunOutcome = RunOutcome.COMPLETED) -> None:
        assert self._outcome is not None
        self._end()
        self._outcome.set_result(outcome)

    def die(self, death: ActorDied | None = None) -> None:
        assert self._outcome is not None
        self._end()
        self._outcome.set_exception(death or ActorDied("its process ended"))

    def _end(self) -> None:
        self.job_id = None
        self._idle.set()


class FakeEngine:
    def __init__(self) -> None:
        self.answers = True
        self.jobs = 4
        """How many it takes at once."""
        self.is_gone = False
        self.works_s = 0.0
        """How long its work may keep it from answering."""
        self.asked = 0
        self.kills = 0
        self.cancelled: list[tuple[str, int]] = []
        self.had_begun: bool | None = True
        """Whether the device had worked for a run that is cancelled."""

    async def check(self) -> EngineState:
        self.asked += 1
        if self.is_gone:
            raise EngineGone("its process ended")
        if not self.answers:
            raise ActorUnavailable("no answer in time")
        kind = ActivityKind.CALL if self.works_s else ActivityKind.IDLE
        return EngineState(kind, self.works_s, self.jobs)

    async def kill(self) -> None:
        self.kills += 1
        self.is_gone = True

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        self.cancelled.append((job_id, attempt))
        return self.had_begun


@dataclass
class FakeCluster:
    """See `actors.dispatch.cluster.Cluster`."""

    gpus: float = 0.0
    room: int = 100
    """How many workers there is room for."""
    broken: set[str] = field(default_factory=set)
    """Job actors that do not start, by name."""
    dead_engines: int = 0
    """How many engines die as soon as they are made, from now on."""
    failing_kills: int = 0
    """How many kills fail from now on."""
    groups: dict[str, bool] = field(default_factory=dict)
    """Whether a worker has its place (or waits for room), by its name."""
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    actors: dict[str, FakeJobActor] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Those that were removed since they did not come up."""
    _made: Counter[str] = field(default_factory=Counter)
    _freed: asyncio.Event = field(default_factory=asyncio.Event)

    async def place(self, worker: str) -> float:
        self.groups.setdefault(worker, False)
        while not self.groups[worker] and sum(self.groups.values()) >= self.room:
            self._freed.clear()
            await self._freed.wait()
        self.groups[worker] = True
        return self.gpus

    async def engine(self, worker: str) -> FakeEngine:
        engine = self.engines.get(worker)
        if engine is None or engine.is_gone:
            self.engines[worker] = FakeEngine()
            self.engines[worker].is_gone = self.dead_engines > 0
            self.dead_engines = max(self.dead_engines - 1, 0)
        return self.engines[worker]

    async def job_actor(self, worker: str, name: str) -> FakeJobActor:
        if name not in self.actors:
            self._made[name] += 1
            self.actors[name] = FakeJobActor(name, self._made[name])
            self.actors[name].starts = name not in self.broken
        return self.actors[name]

    async def slots(self, worker: str) -> list[int]:
        prefix = f"{worker}:job:"
        return [slot_number(name) for name in self.actors if name.startswith(prefix)]

    async def kill(self, name: str) -> None:
        if self.failing_kills:
            self.failing_kills -= 1
            raise ActorUnavailable("the cluster does not answer")
        self.killed.append(name)
        self.actors.pop(name, None)

    async def workers(self, prefix: str) -> list[str]:
        return sorted(name for name in self.groups if name.startswith(prefix))

    async def is_idle(self, worker: str) -> bool:
        mine = [actor for name, actor in self.actors.items() if name.startswith(f"{worker}:")]
        return all(actor.job_id is None for actor in mine)

    async def remove(self, worker: str, *, has_failed: bool = False) -> None:
        self.removed.append(worker)
        if has_failed:
            self.failed.append(worker)
        del self.groups[worker]
        self.engines.pop(worker, None)
        for name in [name for name in self.actors if name.startswith(f"{worker}:")]:
            del self.actors[name]
        self._freed.set()

    # What a test asks.

    def running(self, job_id: str) -> FakeJobActor | None:
        """The actor that runs a job."""
        return next((each for each in self.actors.values() if each.job_id == job_id), None)

    def give_room(self, workers: int) -> None:
        self.room += workers
        self._freed.set()


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
        settings = DispatchSettings(endpoints_period_s=0.01, worker_idle_s=1000, jobs_per_actor=100)
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
            hold_renew_s=LEASE_S / 3,
            max_dispatch_failures=max_dispatch_failures,
            deadlines_period_s=0.02,
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
