"""The engine process: who has the device, when it is broken, and what it says of each run."""

from __future__ import annotations

import asyncio
import faulthandler
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from actors.worker.config import worker_config
from actors.worker.engine_process import (
    EngineDied,
    EngineHost,
    EngineProcess,
    EngineState,
    RemoteEngine,
    RunRequest,
    _start_engine,
    ended_by_itself,
    was_taken_away,
)
from actors.worker.run_mark import RunMark
from actors.worker.standby import DeviceLock
from actors.worker.watchdog import TimeLimits
from engine.activity import Activity, ActivityKind, ModelUse, OnActive
from engine.engine import Engine
from engine.errors import Cancelled, DeviceFailed, EngineError, NodeFailed
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.options import RunOptions
from engine.reports import EngineEvent, Errored, Finished, Progress
from events.store.records import Endpoint
from settings.settings import Settings
from tests.support.engine.workflows import node
from tests.support.polling import eventually
from tests.support.ray_handles import EngineHandle

REQUEST = RunRequest("a", 1, {}, Path("gone"), RunOptions())


@pytest.fixture(params=[RaySystemError("away"), ValueError("no such actor")])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RemoteEngine:
    """One that the cluster does not find, or says nothing about."""

    def get_actor(*_: str) -> None:
        raise request.param

    monkeypatch.setattr("actors.worker.engine_process.ray.get_actor", get_actor)
    return RemoteEngine("engine")


async def test_an_engine_that_is_not_found_has_died_and_cannot_be_killed(
    engine: RemoteEngine,
) -> None:
    await engine.kill()
    with pytest.raises(EngineDied):
        await engine.check()
    with pytest.raises(EngineDied):
        async with aclosing(engine.run(REQUEST)) as events:
            await anext(events)


@pytest.mark.parametrize("error", [RaySystemError("away"), ValueError("the actor is dead")])
async def test_a_kill_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("actors.worker.engine_process.ray.get_actor", lambda *_: object())
    monkeypatch.setattr("actors.worker.engine_process.ray.kill", kill)
    await RemoteEngine("engine").kill()


async def test_a_process_that_stands_by_takes_no_run_and_keeps_nobody_waiting() -> None:
    """It had the device when it was found, and was restarted since. Whoever takes it for the engine
    is to look for the one that has the device.
    """
    process = EngineProcess.__new__(EngineProcess)  # without what its constructor starts
    process._device_lock = DeviceLock("a worker of a test")
    process._starting = Future()
    async with asyncio.timeout(5):
        with pytest.raises(EngineDied):
            async with aclosing(process.run(REQUEST)) as events:
                await anext(events)
        with pytest.raises(EngineDied):
            await process.check()
        assert await process.cancel("a-job", 1) is None


async def test_an_engine_without_its_gpu_says_why_it_is_not_ready(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings = Settings.load(models_dir=tmp_path)
    config = worker_config(settings, Endpoint("default")).for_engine()
    process = EngineProcess.__new__(EngineProcess)  # without what its constructor starts
    process._device_lock = lock = DeviceLock(f"a worker of {tmp_path.name}")
    assert lock.acquire()
    with ThreadPoolExecutor(1) as threads:
        process._starting = threads.submit(_start_engine, config, device="cuda", lock=lock)
        with pytest.raises(EngineDied, match="The worker has a GPU, but torch sees none"):
            await process.check()
    faulthandler.cancel_dump_traceback_later()
    lock.release()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, EngineHandle]:
    both = {"engine": EngineHandle(has_device=True), "standby": EngineHandle()}
    monkeypatch.setattr("actors.worker.engine_process.ray.get_actor", lambda name, _: both[name])
    return both


async def test_the_process_that_has_the_device_is_the_engine(
    processes: dict[str, EngineHandle],
) -> None:
    engine = RemoteEngine("engine", "standby")
    await engine.check()
    processes["engine"].error = RayActorError()
    with pytest.raises(EngineDied, match="The engine died"):
        await engine.check()
    with pytest.raises(EngineDied, match="No engine process"):
        await engine.check()
    processes["standby"].holds = True
    await engine.check()
    assert [each.checks for each in processes.values()] == [1, 1]


async def test_a_run_that_reaches_the_standby_goes_on_where_the_device_is(
    processes: dict[str, EngineHandle],
) -> None:
    engine = RemoteEngine("engine", "standby")
    await engine.find()
    processes["engine"].holds, processes["standby"].holds = False, True
    async with aclosing(engine.run(REQUEST)) as events:
        assert [event async for event in events] == [Finished(1)]
    processes["standby"].holds = False
    with pytest.raises(EngineDied, match=r"^No engine process has the device"):
        async with aclosing(engine.run(REQUEST)) as events:
            await anext(events)
    assert [each.runs for each in processes.values()] == [1, 2]


async def test_the_message_about_a_dead_engine_has_the_cause_and_not_the_place(
    processes: dict[str, EngineHandle],
) -> None:
    engine = RemoteEngine("engine", "standby")
    await engine.find()
    cause = EngineDied("The engine is broken.")
    processes["engine"].error = RayTaskError("run", "a traceback", cause).as_instanceof_cause()
    with pytest.raises(EngineDied, match=r"^The engine died: The engine is broken\.$"):
        await engine.check()


async def test_an_engine_that_was_found_ahead_is_not_looked_up_for_the_first_run(
    processes: dict[str, EngineHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RemoteEngine("engine", "standby")
    await engine.find()
    monkeypatch.setattr(
        "actors.worker.engine_process.ray.get_actor", lambda *_: pytest.fail("looked up again")
    )
    await engine.check()
    assert processes["engine"].checks == 1


async def test_an_engine_that_is_not_there_yet_is_looked_up_for_the_first_run(
    processes: dict[str, EngineHandle],
) -> None:
    processes["engine"].holds = False
    engine = RemoteEngine("engine", "standby")
    await engine.find()
    processes["engine"].holds = True
    await engine.check()
    assert processes["engine"].checks == 1


class Answer:
    """Answers to one question, each when a test gives it."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[bool]] = []

    def remote(self) -> Awaitable[bool]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


async def test_who_looks_it_up_too_does_not_hide_it_from_who_has_found_it(
    processes: dict[str, EngineHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the first run does, its heartbeat, and the actor ahead of both."""
    answers = {name: Answer() for name in processes}
    for name, process in processes.items():
        monkeypatch.setattr(process, "has_device", answers[name])
    engine = RemoteEngine("engine", "standby")
    checks = [asyncio.create_task(engine.check()) for _ in range(2)]
    await eventually(lambda: all(len(each.asked) == len(checks) for each in answers.values()))
    answers["engine"].asked[0].set_result(True)
    answers["standby"].asked[1].set_result(False)
    await checks[0]
    answers["engine"].asked[1].set_result(True)
    await checks[1]


async def test_the_process_that_hangs_is_killed_and_not_the_one_that_stands_by(
    processes: dict[str, EngineHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[EngineHandle] = []
    monkeypatch.setattr(
        "actors.worker.engine_process.ray.kill", lambda each, **_: killed.append(each)
    )
    processes["engine"].holds, processes["standby"].holds = False, True
    engine = RemoteEngine("engine", "standby")
    await engine.check()
    processes["standby"].error = RayActorError()  # or says nothing, which is the same here
    with pytest.raises(EngineDied):
        await engine.check()
    await engine.kill()
    assert killed == [processes["standby"]]


# What the errors of Ray say of a death. The texts are those of ray 2.60.


KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker "
    "exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
)
PLACE_GONE = (
    "The actor is dead because its worker process has died. Worker exit type: INTENDED_SYSTEM_EXIT "
    "Worker exit detail: Destroying worker since its placement group was removed."
)
PREEMPTED = NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED
KILLED_BY_US = "The actor is dead because it was killed by `ray.kill`."
NODE_GONE = (
    "The actor died because its node has died. Node Id: bfc4\n"
    "\tthe actor's node was terminated unexpectedly: health check failed"
)


def died(text: str, **node: int) -> ActorDiedError:
    context = ActorDiedErrorContext(error_message=text, actor_id=b"0" * 16)
    if node:
        context.node_death_info.CopyFrom(NodeDeathInfo(**node))
    return ActorDiedError(context)


@pytest.mark.parametrize(
    ("error", "by_itself", "taken_away"),
    [
        pytest.param(died(KILLED), True, False, id="killed"),
        pytest.param(RayTaskError("run", "trace", ValueError("no")), True, False, id="its error"),
        pytest.param(died(PLACE_GONE), False, True, id="placement group"),
        pytest.param(died(KILLED_BY_US), False, True, id="ray.kill"),
        pytest.param(died(NODE_GONE), False, True, id="node"),
        pytest.param(died(KILLED, reason=PREEMPTED), False, True, id="preempted"),
        pytest.param(ActorUnavailableError("Socket closed", None), False, False, id="not reached"),
    ],
)
def test_an_actor_ends_by_itself_or_is_taken_away_or_may_come_back(
    error: RayError, *, by_itself: bool, taken_away: bool
) -> None:
    assert ended_by_itself(error) is by_itself
    assert was_taken_away(error) is taken_away


# What the process that has the device says of each run.


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
        self.suggested_concurrency = 16
        self.model_use = ModelUse(loaded=3)
        self.activity = Activity(0, ActivityKind.IDLE)
        self.on_active: OnActive | None = None
        self._on_event: Callable[[EngineEvent], None] | None = None

    def submit(
        self,
        _graph: object,
        _options: RunOptions,
        *,
        on_event: Callable[[EngineEvent], None],
        on_active: OnActive,
        **_: object,
    ) -> Any:
        if self.refuses:
            raise EngineError("the engine has stopped")
        self._on_event, self.on_active = on_event, on_active
        return self

    def cancel(self, _run: object) -> None:
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
        request = RunRequest(job_id, 1, PROMPT, mark, RunOptions())
        return [event async for event in self.host.run(request)][-1]

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
        events = bench.host.run(RunRequest("a", 1, PROMPT, mark.path, RunOptions()))
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


async def test_it_says_what_it_does_for_how_long_it_may_and_what_it_takes(bench: Bench) -> None:
    began = time.monotonic() - 130
    bench.engine.activity = Activity(1, ActivityKind.LOAD, began)
    state = bench.host.check()
    assert state.kind is ActivityKind.LOAD
    assert 400 < state.seconds_left <= 470
    assert state.models == ModelUse(loaded=3)
    assert state.memory_bytes > 10 * 2**20
    bench.engine.activity = Activity(1, ActivityKind.CALL, began)
    assert bench.host.check() == EngineState(ActivityKind.CALL, 0.0, jobs=8)
