"""What the machine, or a neighbour, does is not charged to a job."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.worker.attempt import AttemptLimits
from actors.worker.engine_host import EngineState, EngineTaken, Order
from actors.worker.job import JobRunner, RunOutcome
from actors.worker.plan import Plan
from engine.activity import ActivityKind
from engine.errors import EngineError, MachineFailed, OutOfMemory
from engine.reports import Errored, Finished
from events.decisions import Cancel, Submit
from events.ids import new_id
from events.job import Job
from events.log import JobWriter, utc_now
from events.memory.log import MemoryLog
from events.memory.queues import MemoryJobQueue
from events.queue import QueueEntry
from events.types import Cancelled, Completed, Failed
from events.wire.progress import JobProgress
from storage.images import ImageStore
from tests.support.events import submitted
from tests.support.polling import eventually
from tests.support.worker import LANE, ScriptedEngine, pictures

LIMITS = AttemptLimits(silence_s=30, longest_machine_pause_s=0.05)
FULL = OSError(errno.EMFILE, "Too many open files")


class Bench:
    """A job, and runners that work for it one after the other, in memory."""

    def __init__(self, folder: Path) -> None:
        self.writer = JobWriter(MemoryLog())
        self.queue = MemoryJobQueue()
        self.job_id = new_id()
        self._log = self.writer._log
        self._images = ImageStore(folder.as_uri())

    async def submit(self, **changes: Any) -> None:
        await self.writer.submit(self.job_id, Submit(submitted(lane=LANE, **changes)))
        await self.queue.add("default", LANE, self.job_id)

    async def job(self) -> Job:
        job = await self.writer.load(self.job_id)
        assert job is not None
        return job

    @asynccontextmanager
    async def entry(self) -> AsyncIterator[QueueEntry]:
        async with self.queue.reader("default", LANE) as lane:
            [entry] = await lane.next(most=1, timeout_s=5)
            yield entry

    async def attempt(
        self,
        engine: Any,
        *,
        plan: Callable[[Job], Plan] = lambda _: Plan({"1": {}}, None, {}),
        limits: AttemptLimits = LIMITS,
    ) -> RunOutcome:
        async def report(_job_id: str, progress: JobProgress) -> None:
            pass

        runner = JobRunner(
            actor=new_id(),
            log=self._log,
            images=self._images,
            engine=engine,
            plan=plan,
            report_progress=report,
            limits=limits,
            lease_renew_s=0.01,
            max_attempts=1,
            max_attempts_total=2,
            now=utc_now,
        )
        async with self.entry() as entry:
            return await runner.run(entry)


@pytest.fixture
async def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    await bench.submit()
    return bench


async def test_a_machine_without_files_costs_a_job_nothing(bench: Bench) -> None:
    def no_files(_: Job) -> Plan:
        raise FULL

    for _ in range(4):
        assert await bench.attempt(ScriptedEngine([]), plan=no_files) is RunOutcome.RETRY
    job = await bench.job()
    assert (job.charged_attempts, job.spared_attempts, job.is_suspect) == (0, 4, False)
    assert job.last_failure == "The machine failed: [Errno 24] Too many open files"
    assert await bench.attempt(ScriptedEngine(pictures(1))) is RunOutcome.COMPLETED


async def test_a_machine_without_threads_costs_a_job_nothing(bench: Bench) -> None:
    class NoThreads(ScriptedEngine):
        async def check(self) -> EngineState:
            raise RuntimeError("can't start new thread")

    engine = NoThreads([Finished(0)], gated=True)
    assert await bench.attempt(engine) is RunOutcome.RETRY
    assert (await bench.job()).spared_attempts == 1


async def test_so_does_one_that_fails_the_engine(bench: Bench) -> None:
    script = [Errored(MachineFailed("The machine failed: no room"))]
    assert await bench.attempt(ScriptedEngine(list(script))) is RunOutcome.RETRY
    job = await bench.job()
    assert (job.spared_attempts, job.last_failure) == (1, "The machine failed: no room")


async def test_a_job_that_is_held_meanwhile_can_be_cancelled(bench: Bench) -> None:
    script = [Errored(MachineFailed("no room"))]
    patient = replace(LIMITS, longest_machine_pause_s=60)
    runs = [asyncio.create_task(bench.attempt(ScriptedEngine(list(script)), limits=patient))]

    async def is_spared() -> bool:
        return (await bench.job()).spared_attempts == 1

    await eventually(is_spared)
    await bench.writer.execute(Cancel(), await bench.job())
    async with asyncio.timeout(5):
        assert await runs[0] is RunOutcome.ENDED
    assert isinstance((await bench.job()).end, Cancelled)


async def test_a_job_that_is_held_meanwhile_kills_no_engine(bench: Bench) -> None:
    engine = ScriptedEngine([Errored(MachineFailed("no room"))])
    hasty = AttemptLimits(silence_s=0.02, longest_machine_pause_s=0.2)
    assert await bench.attempt(engine, limits=hasty) is RunOutcome.RETRY
    assert engine.kills == 0
    assert (await bench.job()).spared_attempts == 1


async def test_an_engine_that_was_taken_away_costs_a_job_nothing(bench: Bench) -> None:
    class Taken(ScriptedEngine):
        async def run(self, order: Order) -> Any:
            raise EngineTaken("its node has died")
            yield

    for _ in range(4):
        assert await bench.attempt(Taken([])) is RunOutcome.RETRY
    job = await bench.job()
    assert (job.charged_attempts, job.spared_attempts, job.is_suspect) == (0, 4, False)


async def test_memory_that_ran_out_beside_others_is_tried_alone(bench: Bench) -> None:
    full = ScriptedEngine([Errored(OutOfMemory("no room", True))])
    assert await bench.attempt(full) is RunOutcome.RETRY
    again = ScriptedEngine(pictures(1))
    assert await bench.attempt(again) is RunOutcome.COMPLETED
    assert again.orders[0].is_exclusive
    assert isinstance((await bench.job()).end, Completed)


async def test_memory_that_ran_out_alone_fails_the_job(bench: Bench) -> None:
    assert await bench.attempt(ScriptedEngine([Errored(OutOfMemory())])) is RunOutcome.ENDED
    assert (await bench.job()).end == Failed(message=str(OutOfMemory()), code="out_of_memory")


async def test_a_neighbours_load_of_two_minutes_is_waited_for(bench: Bench) -> None:
    engine = ScriptedEngine(pictures(1), gated=True)
    engine.state = EngineState(ActivityKind.LOAD, 470.0, jobs=4)
    quick = AttemptLimits(silence_s=0.05, start_s=30, heartbeat_s=0.01)
    run = asyncio.create_task(bench.attempt(engine, limits=quick))
    await eventually(lambda: engine.orders)
    await asyncio.sleep(0.1)
    engine.silent = True  # the load leaves it no time to answer
    await asyncio.sleep(0.3)
    assert not run.done()
    engine.advance(5)
    assert await run is RunOutcome.COMPLETED
    assert engine.kills == 0


async def test_an_error_of_the_job_is_no_error_of_the_machine(bench: Bench) -> None:
    def no_file(_: Job) -> Plan:
        raise OSError(errno.ENAMETOOLONG, "File name too long")

    assert await bench.attempt(ScriptedEngine([]), plan=no_file) is RunOutcome.ENDED
    assert isinstance((await bench.job()).end, Failed)


def test_a_neighbour_is_told_of_in_the_error_that_travels() -> None:
    import pickle

    errors: list[EngineError] = [OutOfMemory("no room", True), MachineFailed("no room")]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), vars(again)) == (str(error), vars(error))
