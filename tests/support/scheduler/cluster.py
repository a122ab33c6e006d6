"""A cluster in memory for tests of dispatching; a test controls its actors."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from pydantic import SecretStr

from actors.scheduler.cluster import ActorDied, ActorUnavailable, EngineGone
from actors.scheduler.names import slot_number
from actors.worker.engine_process import EngineState, ServerInfo
from actors.worker.job_actor import RunOutcome
from engine.activity import ActivityKind
from events.bus.queues import QueueEntry
from events.job import Job


class FakeJobActor:
    """Runs each job until a test ends it."""

    def __init__(self, name: str, incarnation: int) -> None:
        self.writer = f"{name}@{incarnation}"
        self.starts = True
        self.hangs = False
        self.answers = True
        self.is_retired = False
        self.job_id: str | None = None
        self.jobs_run = 0
        self.entries: list[QueueEntry] = []
        """Every delivery that it has received, newest last."""
        self.after_attempts: int | None = None
        """The number of earlier attempts that the last job came with."""
        self.extra_data: SecretStr | None = None
        """The extra data that the last job came with."""
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

    async def run(self, entry: QueueEntry, job: Job, extra_data: SecretStr | None) -> RunOutcome:
        if self.job_id is not None or self.is_retired:
            return RunOutcome.BUSY
        self.begin(entry.job_id)
        self.entries.append(entry)
        self.after_attempts, self.extra_data = job.attempts, extra_data
        assert self._outcome is not None
        return await asyncio.shield(self._outcome)  # a cancelled caller must not cancel the outcome

    async def retire(self) -> bool:
        if not self.answers:
            raise ActorUnavailable("no answer in time")
        self.is_retired = self.is_retired or self.job_id is None
        return self.is_retired

    async def take_delivery(self, entry: QueueEntry, *, timeout_s: float) -> bool:
        if self.hangs or self.job_id != entry.job_id:
            return False
        self.entries.append(entry)
        return True

    # Methods for tests follow.

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
        """The number of jobs that it runs at once."""
        self.is_gone = False
        self.works_s = 0.0
        """The seconds for which work may delay its answers."""
        self.asked = 0
        self.kills = 0
        self.cancelled: list[tuple[str, int]] = []
        self.had_begun: bool | None = True
        """Whether the device had worked for a cancelled run."""
        self.server: ServerInfo | None = None

    async def check(self) -> EngineState:
        self.asked += 1
        if self.is_gone:
            raise EngineGone("its process ended")
        if not self.answers:
            raise ActorUnavailable("no answer in time")
        kind = ActivityKind.CALL if self.works_s else ActivityKind.IDLE
        return EngineState(kind, self.works_s, self.jobs, server=self.server)

    async def kill(self) -> None:
        self.kills += 1
        self.is_gone = True

    async def cancel(self, job_id: str, attempt: int) -> bool | None:
        self.cancelled.append((job_id, attempt))
        return self.had_begun


@dataclass
class FakeCluster:
    """A simulated cluster; see `actors.scheduler.cluster.Cluster`."""

    gpus: float = 0.0
    room: int = 100
    """The number of workers that fit."""
    broken: set[str] = field(default_factory=set)
    """The names of job actors that do not start."""
    dead_engines: int = 0
    """The number of further engines that die at their start."""
    failing_kills: int = 0
    """The number of further kills that fail."""
    groups: dict[str, bool] = field(default_factory=dict)
    """Whether a worker is placed (or waits for room), by its name."""
    engines: dict[str, FakeEngine] = field(default_factory=dict)
    actors: dict[str, FakeJobActor] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)
    drained: set[str] = field(default_factory=set)
    """Workers whose node is being drained."""
    removed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Workers that were removed because they did not start."""
    asked: int = 0
    """How often its workers were asked for."""
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
        self.asked += 1
        return sorted(name for name in self.groups if name.startswith(prefix))

    async def draining(self, prefix: str) -> list[str]:
        return sorted(name for name in self.drained if name.startswith(prefix))

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

    # Methods with which tests read the state follow.

    def running(self, job_id: str) -> FakeJobActor | None:
        """The actor that runs a job."""
        return next((each for each in self.actors.values() if each.job_id == job_id), None)

    def give_room(self, workers: int) -> None:
        self.room += workers
        self._freed.set()
