"""When an engine is broken, and what its host says of each run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from actors.worker.engine_host import EngineDied, EngineHost, EngineState, RunRequest
from actors.worker.run_mark import RunMark
from actors.worker.watchdog import TimeLimits
from engine.activity import Activity, ActivityKind, ModelUse, OnActive
from engine.engine import Engine
from engine.errors import Cancelled, DeviceFailed, EngineError, NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.reports import EngineEvent, Errored, Finished, Progress
from tests.support.engine.workflows import node
from tests.support.polling import eventually

PROMPT = {
    "1": node("EmptyImage", width=8, height=8, batch_size=1, color=0),
    "2": node("SaveImage", images=["1", 0], filename_prefix="x"),
}
OWN = NodeFailed("1", "KSampler", "ValueError: no")
FAULT = DeviceFailed("The device failed: CUDA error", False)


class FakeEngine:
    """Ends each run as a test says."""

    def __init__(self) -> None:
        self.has_stopped = False
        self.refuses = False
        self.jobs = 16
        self.model_use = ModelUse(loaded=3)
        self.activity = Activity(0, ActivityKind.IDLE)
        self.on_active: OnActive | None = None
        self._on_event: Callable[[EngineEvent], None] | None = None

    def submit(
        self,
        _graph: object,
        *,
        on_event: Callable[[EngineEvent], None],
        on_active: OnActive,
        **_: object,
    ) -> Any:
        if self.refuses:
            raise EngineError("the engine has stopped")
        self._on_event, self.on_active = on_event, on_active
        return self

    def cancel(self) -> None:
        pass

    def report(self, event: EngineEvent) -> None:
        assert self._on_event is not None
        self._on_event(event)

    async def end(self, error: EngineError | None) -> None:
        on_event = await eventually(lambda: self._on_event)
        self._on_event = None
        on_event(Finished(0) if error is None else Errored(error))


class Bench:
    def __init__(self, folder: Path) -> None:
        self.engine = FakeEngine()
        self.host = EngineHost(
            engine=cast("Engine", self.engine),
            catalogue=Catalogue(ModelsFolder(folder)),
            time_limits=TimeLimits(step_s=120.0, load_s=600.0),
            most_jobs=8,
        )

    async def run(self, job_id: str, mark: Path) -> EngineEvent:
        order = RunRequest(job_id, 1, PROMPT, None, input_files={}, mark=mark, limits=Limits())
        return [event async for event in self.host.run(order)][-1]

    async def runs(self, job_id: str, error: EngineError | None = None) -> EngineEvent:
        """A run of this job that ends so."""
        with RunMark.new() as mark:
            last, _ = await asyncio.gather(self.run(job_id, mark.path), self.engine.end(error))
            return last


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    ("runs", "is_broken"),
    [
        ([("a", FAULT)] * 5, False),
        ([("a", FAULT), ("a", FAULT), ("b", FAULT)], True),
        ([("a", FAULT), ("c", None), ("b", FAULT)], False),
        ([("a", OWN), ("b", OWN), ("c", OWN)], False),
    ],
    ids=["one job", "different jobs", "a success between", "nodes fail"],
)
async def test_a_device_that_fails_the_runs_of_different_jobs_in_a_row_is_broken(
    bench: Bench, runs: list[tuple[str, EngineError | None]], *, is_broken: bool
) -> None:
    for job_id, error in runs:
        assert not bench.host.is_broken
        ended = await bench.runs(job_id, error)
        assert ended == (Finished(0) if error is None else Errored(error))
    assert bench.host.is_broken is is_broken


async def test_an_engine_that_has_stopped_is_broken_and_no_fault_of_its_runs(bench: Bench) -> None:
    bench.engine.has_stopped = True
    with pytest.raises(EngineDied):
        await bench.runs("a", Cancelled("the engine was stopped"))
    assert bench.host.is_broken


async def test_the_run_that_lost_the_device_is_told_so(bench: Bench) -> None:
    bench.engine.has_stopped = True
    lost = DeviceFailed("The device failed: CUDA error", True)
    assert await bench.runs("a", lost) == Errored(lost)
    assert bench.host.is_broken


async def test_a_run_is_marked_while_the_device_works_for_it(bench: Bench) -> None:
    with RunMark.new() as mark:
        run = asyncio.create_task(bench.run("a", mark.path))
        set_active = await eventually(lambda: bench.engine.on_active)
        assert not mark.is_active
        set_active(True)
        assert mark.is_active
        set_active(False)
        assert not mark.is_active
        await bench.engine.end(None)
        await run


async def test_a_run_that_the_device_failed_is_marked_before_its_end_is_taken(bench: Bench) -> None:
    """Its job may be slow to take what it made before, and the process ends meanwhile."""
    with RunMark.new() as mark:
        order = RunRequest("a", 1, PROMPT, None, input_files={}, mark=mark.path, limits=Limits())
        events = bench.host.run(order)
        first = asyncio.create_task(anext(events))
        set_active = await eventually(lambda: bench.engine.on_active)
        bench.engine.report(Progress(1, 2))
        await first
        await bench.engine.end(FAULT)
        set_active(False)
        assert mark.is_active
        await events.aclose()


async def test_an_engine_that_takes_no_run_is_one_that_died(bench: Bench) -> None:
    bench.engine.refuses = True
    with RunMark.new() as mark, pytest.raises(EngineDied):
        await bench.run("a", mark.path)


async def test_an_engine_that_has_stopped_does_not_say_that_it_is_well(bench: Bench) -> None:
    assert bench.host.check() == EngineState(ActivityKind.IDLE, 120.0, jobs=8)
    bench.engine.has_stopped = True
    with pytest.raises(EngineDied):
        bench.host.check()


async def test_it_says_what_it_does_and_for_how_long_it_may(bench: Bench) -> None:
    began = time.monotonic() - 130
    bench.engine.activity = Activity(1, ActivityKind.LOAD, began)
    state = bench.host.check()
    assert state.kind is ActivityKind.LOAD
    assert 400 < state.seconds_left <= 470
    bench.engine.activity = Activity(1, ActivityKind.CALL, began)
    assert bench.host.check() == EngineState(ActivityKind.CALL, 0.0, jobs=8)


async def test_it_says_what_its_models_and_its_process_take(bench: Bench) -> None:
    state = bench.host.check()
    assert state.models == ModelUse(loaded=3)
    assert state.memory_bytes > 10 * 2**20
