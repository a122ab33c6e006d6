"""A poison job fails, and the jobs that ran beside it do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from pydantic import SecretStr

from actors.scheduler.cluster import ActorDied, ActorUnavailable
from actors.worker.attempt import AttemptLimits
from actors.worker.engine_process import EngineDied, EngineState, RemoteEngine, RunRequest
from actors.worker.job_actor import JobRunner, RunOutcome
from actors.worker.run_mark import RunMarkWriter
from engine.activity import ActivityKind
from engine.admission import Admission
from engine.interface import Limits, ModelsFolder
from engine.reports import EngineEvent, Finished, ImageReady
from events.bus.queues import QueueEntry
from events.job import Job
from events.job_progress import JobProgress
from events.types import Completed, Failed
from storage.images import ImageStore
from tests.support.polling import eventually
from tests.support.scheduler.bench import Bench
from tests.support.scheduler.cluster import FakeCluster, FakeEngine, FakeJobActor

ANSWER_S = 0.005
"""How long it takes until a dispatcher hears that a run has ended."""
STEPS = 12
ROWS = 2


@dataclass(eq=False)
class Run:
    request: RunRequest
    steps: int = 0
    events: asyncio.Queue[EngineEvent | None] = field(default_factory=asyncio.Queue)


class MortalEngine(RemoteEngine):
    """Serves its runs in turn, two in a call; it dies in the third call of a poison job.

    After that it takes no run for `away_s`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.away_s = 0.0
        self._back_at = 0.0
        self.poison: set[str] = set()
        self.deaths: list[set[str]] = []
        """The jobs that ran at each."""
        self._start()

    def _start(self) -> None:
        self._admission: Admission[Run] = Admission(0)
        self._running: list[Run] = []
        self._waiting: list[Run] = []

    @property
    def is_away(self) -> bool:
        return time.monotonic() < self._back_at

    async def run(self, request: RunRequest) -> AsyncGenerator[EngineEvent]:
        if self.is_away:
            raise EngineDied("No engine process has the device.")
        run = Run(request)
        RunMarkWriter(request.mark).set_active(False)
        self._waiting.append(run)
        self._admission.enter(run, 0, is_exclusive=request.options.is_exclusive)
        while True:
            event = await run.events.get()
            if event is None:
                raise EngineDied("The engine died: killed")
            yield event

    async def work(self) -> None:
        """Make one call after another."""
        while True:
            while run := self._admission.admit():
                self._waiting.remove(run)
                self._running.append(run)
            group, self._running = self._running[:ROWS], self._running[ROWS:]
            self._running += group
            for run in self._running:
                RunMarkWriter(run.request.mark).set_active(run in group)
            await asyncio.sleep(0.001)
            for run in group:
                run.steps += 1
            if any(run.steps == 3 and run.request.job_id in self.poison for run in group):
                self._die()
                continue
            for run in group:
                if run.steps == STEPS:
                    self._finish(run)

    def _finish(self, run: Run) -> None:
        run.events.put_nowait(ImageReady(0, "9", np.zeros((8, 8, 3), np.uint8), 7))
        run.events.put_nowait(Finished(1))
        self._running.remove(run)
        self._admission.leave(run)

    def _die(self) -> None:
        self._back_at = time.monotonic() + self.away_s
        self.deaths.append({run.request.job_id for run in self._running})
        for run in [*self._running, *self._waiting]:
            run.events.put_nowait(None)
        self._start()

    async def check(self) -> EngineState:
        return EngineState(ActivityKind.CALL, 120.0, jobs=4)

    async def kill(self) -> None:
        raise AssertionError("it answers, so nobody kills it")


class RunnerActor(FakeJobActor):
    """Runs its jobs as a job actor does, and dies at those that are deadly for it."""

    def __init__(self, name: str, incarnation: int, bench: BlameBench) -> None:
        super().__init__(name, incarnation)
        self._bench = bench

    async def run(self, entry: QueueEntry, job: Job, extra_data: SecretStr | None) -> RunOutcome:
        self.begin(entry.job_id)
        try:
            if entry.job_id in self._bench.deadly:
                await self._bench.start(entry.job_id, self)
                raise ActorDied("its process ended")
            outcome = await self._bench.runner(self.writer).run(
                entry.job_id, entry.ack_subject, job, extra_data=extra_data
            )
            self.job_id = None
            await asyncio.sleep(ANSWER_S)
            return outcome
        finally:
            self._end()


class EngineActor(FakeEngine):
    def __init__(self, engine: MortalEngine) -> None:
        super().__init__()
        self._engine = engine

    async def check(self) -> EngineState:
        if self._engine.is_away:
            raise ActorUnavailable("it starts")
        return await super().check()


class RunningCluster(FakeCluster):
    make: Callable[[str, int], FakeJobActor]
    mortal: MortalEngine

    async def engine(self, worker: str) -> FakeEngine:
        return EngineActor(self.mortal)

    async def job_actor(self, worker: str, name: str) -> FakeJobActor:
        if name not in self.actors:
            self._made[name] += 1
            self.actors[name] = self.make(name, self._made[name])
        return self.actors[name]


class BlameBench(Bench):
    """Real job runners under a real dispatcher, with an engine that dies."""

    def __init__(self, folder: Path) -> None:
        super().__init__(lease_s=30)  # each entry is given back before its lease is over
        self.engine = MortalEngine()
        self.deadly: set[str] = set()
        """Jobs that end their job actor."""
        self.cluster = cluster = RunningCluster()
        cluster.mortal = self.engine
        cluster.make = lambda name, incarnation: RunnerActor(name, incarnation, self)
        self._images = ImageStore(folder.as_uri())

    def runner(self, actor: str) -> JobRunner:
        async def report_progress(job_id: str, progress: JobProgress) -> None:
            pass

        return JobRunner(
            actor=actor,
            log=self.log,
            queue=self.queue,
            images=self._images,
            engine=self.engine,
            models=ModelsFolder(Path("none")),
            graph_limits=Limits(),
            report_progress=report_progress,
            limits=AttemptLimits(silence_s=30, lease_renew_s=0.1),
            max_attempts=3,
            max_attempts_total=20,
        )

    @asynccontextmanager
    async def working(self, *, slots: int) -> AsyncIterator[None]:
        device = asyncio.create_task(self.engine.work())
        try:
            async with self.dispatching(slots=slots):
                yield
        finally:
            device.cancel()
            await asyncio.wait({device})

    async def run_with_poison(self, *lanes: int, slots: int) -> tuple[list[Job], list[Job]]:
        """Run a job of each lane, some of which kill the engine. Returns these, and the others."""
        jobs = {lane: await self.submit(lane=lane, images=1) for lane in range(8)}
        self.engine.poison.update(jobs[lane] for lane in lanes)
        async with self.working(slots=slots):
            ended = await self.all_ended(*jobs.values())
        poison = [job for job in ended if job.id in self.engine.poison]
        return poison, [job for job in ended if job not in poison]

    async def all_ended(self, *job_ids: str) -> list[Job]:
        async def have_ended() -> list[Job]:
            jobs = [await self.job(job_id) for job_id in job_ids]
            return jobs if all(job.end is not None for job in jobs) else []

        return await eventually(have_ended, within_s=20)


@pytest.fixture
def bench(tmp_path: Path) -> BlameBench:
    return BlameBench(tmp_path)


def gave_up(message: str) -> Failed:
    reason = f"3 of them with no other job on the engine: {message}"
    return Failed(message=f"Gave up after 4 attempts, {reason}", code="engine_failed")


async def test_a_job_that_kills_the_engine_fails_alone(bench: BlameBench) -> None:
    [poison], rest = await bench.run_with_poison(1, slots=4)
    assert poison.end == gave_up("The engine died: killed")
    assert [(job.end, job.blamed_attempts) for job in rest] == [(Completed(images=1), 0)] * 7
    assert len(bench.engine.deaths) == 4
    assert bench.engine.deaths[1:] == [{poison.id}] * 3
    # One neighbour was in the deadly call, and ran alone once. The others only ran again.
    assert sum(job.is_suspect for job in rest) == ROWS - 1


async def test_an_engine_that_is_away_is_no_fault_of_jobs_that_want_it(bench: BlameBench) -> None:
    bench.engine.away_s = 0.2
    [poison], rest = await bench.run_with_poison(1, slots=8)
    assert isinstance(poison.end, Failed)
    assert [(job.end, job.blamed_attempts) for job in rest] == [(Completed(images=1), 0)] * 7
    assert sum(job.is_suspect for job in rest) == ROWS - 1
    # Nobody was sent to it before it was back: one attempt for each death, and one that succeeded.
    assert max(job.attempts for job in rest) <= len(bench.engine.deaths) + 1


async def test_many_poison_jobs_fail_no_neighbour(bench: BlameBench) -> None:
    poison, neighbours = await bench.run_with_poison(1, 3, 5, slots=4)
    assert [type(job.end) for job in poison] == [Failed] * 3
    assert [type(job.end) for job in neighbours] == [Completed] * 5


async def test_a_job_that_kills_its_actor_comes_to_an_end(bench: BlameBench) -> None:
    deadly, neighbour = [await bench.submit(lane=lane, images=1) for lane in (1, 2)]
    bench.deadly.add(deadly)
    async with bench.working(slots=2):
        failed, completed = await bench.all_ended(deadly, neighbour)
    assert failed.end == gave_up("The job actor died: its process ended")
    assert completed.end == Completed(images=1)
