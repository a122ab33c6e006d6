"""The processes of a worker: their deaths, who has the device, and what they load."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import aclosing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext, NodeDeathInfo
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from actors.worker.engine_host import EngineDied, RunRequest
from actors.worker.job_runner import JobRunner, RunOutcome
from actors.worker.processes import (
    DeviceLock,
    Devices,
    EngineProcess,
    JobActorParts,
    JobProcess,
    RemoteEngine,
    ended_by_itself,
    was_taken_away,
)
from engine.interface import Limits
from tests.support.events import START
from tests.support.memory.queues import MemoryJobQueue
from tests.support.polling import eventually
from tests.support.ray_handles import EngineHandle

ORDER = RunRequest("a", 1, {}, None, input_files={}, mark=Path("gone"), limits=Limits())


@pytest.fixture(params=[RaySystemError("away"), ValueError("no such actor")])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RemoteEngine:
    """One that the cluster does not find, or says nothing about."""

    def get_actor(*_: str) -> None:
        raise request.param

    monkeypatch.setattr("actors.worker.processes.ray.get_actor", get_actor)
    return RemoteEngine("engine")


async def test_an_engine_that_is_not_found_has_died_and_cannot_be_killed(
    engine: RemoteEngine,
) -> None:
    await engine.kill()
    with pytest.raises(EngineDied):
        await engine.check()
    with pytest.raises(EngineDied):
        async with aclosing(engine.run(ORDER)) as events:
            await anext(events)


@pytest.mark.parametrize("error", [RaySystemError("away"), ValueError("the actor is dead")])
async def test_a_kill_that_fails_is_no_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def kill(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("actors.worker.processes.ray.get_actor", lambda *_: object())
    monkeypatch.setattr("actors.worker.processes.ray.kill", kill)
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
    process._device_lock = DeviceLock("a worker of a test")
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
    monkeypatch.setattr("actors.worker.processes.ray.get_runtime_context", lambda: Context(node))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")
    devices = Devices("a", visible)
    if is_right:
        devices.adopt()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == visible
        return
    with pytest.raises(RuntimeError, match="another node"):
        devices.adopt()


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, EngineHandle]:
    both = {"engine": EngineHandle(has_device=True), "standby": EngineHandle()}
    monkeypatch.setattr("actors.worker.processes.ray.get_actor", lambda name, _: both[name])
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


async def test_an_engine_that_was_found_ahead_is_not_looked_up_for_the_first_run(
    processes: dict[str, EngineHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = RemoteEngine("engine", "standby")
    await engine.find()
    monkeypatch.setattr(
        "actors.worker.processes.ray.get_actor", lambda *_: pytest.fail("looked up again")
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
    monkeypatch.setattr("actors.worker.processes.ray.kill", lambda each, **_: killed.append(each))
    processes["engine"].holds, processes["standby"].holds = False, True
    engine = RemoteEngine("engine", "standby")
    await engine.check()
    processes["standby"].error = RayActorError()  # or says nothing, which is the same here
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


# What the errors of Ray say of a death. The texts are those of ray 2.60.


KILLED = (
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker "
    "exit detail: Worker unexpectedly exits with a connection error code 2. End of file."
)
PLACE_GONE = (
    "The actor is dead because its worker process has died. Worker exit type: INTENDED_SYSTEM_EXIT "
    "Worker exit detail: Destroying worker since its placement group was removed."
)
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
        pytest.param(
            died(KILLED, reason=NodeDeathInfo.AUTOSCALER_DRAIN_PREEMPTED),
            *(False, True),
            id="preempted",
        ),
        pytest.param(ActorUnavailableError("Socket closed", None), False, False, id="not reached"),
    ],
)
def test_an_actor_ends_by_itself_or_is_taken_away_or_may_come_back(
    error: RayError, *, by_itself: bool, taken_away: bool
) -> None:
    assert ended_by_itself(error) is by_itself
    assert was_taken_away(error) is taken_away


# Who has the device.


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such names")

HOLD = """
import sys
from actors.worker.processes import DeviceLock
turn = DeviceLock(sys.argv[1])
assert turn.take()
print("held", flush=True)
sys.stdin.read()
"""


@on_linux
def test_one_at_a_time_has_it() -> None:
    worker = str(uuid4())
    first, second, other = DeviceLock(worker), DeviceLock(worker), DeviceLock(str(uuid4()))
    assert first.take()
    assert first.take(), "it has it still"
    assert not second.take()
    assert (first.is_held, second.is_held) == (True, False)
    assert other.take()
    first.give_back()
    assert second.take()
    for turn in (second, other):
        turn.give_back()


@on_linux
def test_it_is_free_once_its_holder_was_killed() -> None:
    worker = str(uuid4())
    command = [sys.executable, "-c", HOLD, worker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        turn = DeviceLock(worker)
        waiting = threading.Thread(target=turn.wait, daemon=True)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        holder.kill()
        waiting.join(5)
        assert turn.is_held
        turn.give_back()


def test_where_there_are_no_such_names_the_only_process_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(socket.socket, "bind", refuse(errno.EINVAL))
    turn = DeviceLock(str(uuid4()))
    assert turn.take()
    turn.give_back()


@on_linux
def test_a_system_that_refuses_the_name_is_no_holder_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket.socket, "bind", refuse(errno.EPERM))
    with pytest.raises(PermissionError):
        DeviceLock(str(uuid4())).wait()


def refuse(number: int) -> Callable[..., None]:
    def bind(*_: object) -> None:
        raise OSError(number, "refused")

    return bind


# What they load: there are many of them, and they start while jobs wait.


FORBIDDEN = ("diffusers", "fastapi", "httpx", "sqlalchemy", "torch", "transformers")


def test_the_actors_load_neither_torch_nor_the_database() -> None:
    code = (
        f"import sys, actors.worker.processes; print([m for m in {FORBIDDEN} if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
