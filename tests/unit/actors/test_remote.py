"""An engine that cannot be found is one that died, and no fault of the job that asks for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from ray.exceptions import RayActorError, RaySystemError

from actors import remote, remote_engine
from actors.assembly import JobActorParts
from actors.remote import Devices, EngineProcess, JobProcess
from actors.remote_engine import RemoteEngine
from actors.worker.device_turn import DeviceTurn
from actors.worker.engine_host import EngineDied, Order
from actors.worker.job import JobRunner, RunOutcome
from events.memory.queues import MemoryJobQueue
from tests.support.events import START
from tests.support.polling import eventually

ORDER = Order("a", 1, {}, None, input_files={}, mark=Path("gone"))


@pytest.fixture(params=[RaySystemError("away"), ValueError("no such actor")])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RemoteEngine:
    """One that the cluster does not find, or says nothing about."""

    def get_actor(*_: str) -> None:
        raise request.param

    monkeypatch.setattr(remote_engine.ray, "get_actor", get_actor)
    return RemoteEngine("engine")


async def test_a_run_on_it_breaks_off(engine: RemoteEngine) -> None:
    with pytest.raises(EngineDied):
        async with aclosing(engine.run(ORDER)) as events:
            await anext(events)


async def test_it_does_not_answer(engine: RemoteEngine) -> None:
    with pytest.raises(EngineDied):
        await engine.check()


async def test_there_is_nothing_to_kill(engine: RemoteEngine) -> None:
    await engine.kill()


@pytest.mark.parametrize("error", [RaySystemError("away"), ValueError("the actor is dead")])
async def test_a_kill_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(remote_engine.ray, "get_actor", lambda *_: object())
    monkeypatch.setattr(remote_engine.ray, "kill", kill)
    await RemoteEngine("engine").kill()


async def test_a_process_that_stands_by_takes_no_run() -> None:
    """It had the device when it was found, and was restarted since."""
    with pytest.raises(EngineDied):
        async with aclosing(standing_by().run(ORDER)) as events:
            await asyncio.wait_for(anext(events), 5)


async def test_a_process_that_stands_by_keeps_nobody_waiting_for_an_answer() -> None:
    """Whoever takes it for the engine is to look for the one that has the device."""
    process = standing_by()
    with pytest.raises(EngineDied):
        await asyncio.wait_for(process.check(), 1)
    assert await asyncio.wait_for(process.cancel("a-job", 1), 1) is None


def standing_by() -> EngineProcess:
    process = EngineProcess.__new__(EngineProcess)  # without what its constructor starts
    process._turn = DeviceTurn("a worker of a test")
    process._starting = Future()
    return process


class Context:
    """Of a process on a node."""

    def __init__(self, node: str) -> None:
        self._node = node

    def get_node_id(self) -> str:
        return self._node


@pytest.mark.parametrize(
    ("visible", "node", "is_right"),
    [("3", "a", True), ("3", "b", False), ("", "b", True)],
    ids=["same node", "another node", "no devices"],
)
def test_a_process_takes_no_devices_of_another_node(
    monkeypatch: pytest.MonkeyPatch, visible: str, node: str, is_right: bool
) -> None:
    """Ray starts it with what it was made with, wherever its place has gone."""
    monkeypatch.setattr(remote.ray, "get_runtime_context", lambda: Context(node))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")
    devices = Devices("a", visible)
    if is_right:
        devices.adopt()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
        return
    with pytest.raises(RuntimeError, match="another node"):
        devices.adopt()


class Method:
    def __init__(self, function: Callable[[], Awaitable[object]]) -> None:
        self._function = function

    def remote(self) -> Awaitable[object]:
        return self._function()


class Process:
    """One of the processes of an engine."""

    def __init__(self, *, has_device: bool) -> None:
        self.holds = has_device
        self.is_dead = False
        self.checks = 0
        self.has_device = Method(self._has_device)
        self.check = Method(self._check)

    async def _has_device(self) -> bool:
        if self.is_dead:
            raise RayActorError
        return self.holds

    async def _check(self) -> None:
        if self.is_dead:
            raise RayActorError
        self.checks += 1


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Process]:
    both = {"engine": Process(has_device=True), "standby": Process(has_device=False)}
    monkeypatch.setattr(remote_engine.ray, "get_actor", lambda name, _: both[name])
    return both


async def test_the_process_that_has_the_device_is_the_engine(
    processes: dict[str, Process],
) -> None:
    engine = RemoteEngine("engine", "standby")
    await engine.check()
    processes["engine"].is_dead = True
    with pytest.raises(EngineDied, match="The engine died"):
        await engine.check()
    with pytest.raises(EngineDied, match="not there"):
        await engine.check()
    processes["standby"].holds = True
    await engine.check()
    assert [each.checks for each in processes.values()] == [1, 1]


async def test_an_engine_that_was_found_ahead_is_not_looked_up_for_the_first_run(
    processes: dict[str, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RemoteEngine("engine", "standby")
    await engine.find()
    monkeypatch.setattr(remote_engine.ray, "get_actor", lambda *_: pytest.fail("looked up again"))
    await engine.check()
    assert processes["engine"].checks == 1


async def test_an_engine_that_is_not_there_yet_is_looked_up_for_the_first_run(
    processes: dict[str, Process],
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
    processes: dict[str, Process], monkeypatch: pytest.MonkeyPatch
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
    processes: dict[str, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Process] = []
    monkeypatch.setattr(remote_engine.ray, "kill", lambda each, **_: killed.append(each))
    processes["engine"].holds, processes["standby"].holds = False, True
    engine = RemoteEngine("engine", "standby")
    await engine.check()
    processes["standby"].is_dead = True  # or says nothing, which is the same here
    with pytest.raises(EngineDied):
        await engine.check()
    await engine.kill()
    assert killed == [processes["standby"]]


class Runner:
    """Runs each job until a test ends it."""

    def __init__(self) -> None:
        self.end = asyncio.Event()

    async def run(self, *_: object, after_attempts: int, given_at: datetime) -> RunOutcome:
        assert (after_attempts, given_at) == (0, START)
        await self.end.wait()
        return RunOutcome.COMPLETED


async def test_a_job_actor_takes_one_job_at_a_time_and_none_once_it_has_retired() -> None:
    """Two dispatchers may believe that it is theirs."""
    process, runner = JobProcess.__new__(JobProcess), Runner()
    process._parts = JobActorParts(cast(JobRunner, runner), MemoryJobQueue())
    process._job_id, process._jobs_run, process._is_retired = None, 0, False
    process._idle = asyncio.Event()
    process.ready = ready  # type: ignore[method-assign]
    run = asyncio.create_task(process.run("a-job", "1", None, after_attempts=0, given_at=START))
    await eventually(lambda: process._job_id)
    give_another = partial(process.run, "another", "2", None, after_attempts=0, given_at=START)
    assert await give_another() is RunOutcome.BUSY
    assert not await process.retire()
    runner.end.set()
    assert await run is RunOutcome.COMPLETED
    assert await process.retire()
    assert await give_another() is RunOutcome.BUSY
    assert await process.state() == (None, 1)


async def ready() -> str:
    return "an actor"
