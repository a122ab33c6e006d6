"""What Ray says of the actors of a worker, and what dispatching hears of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from ray.exceptions import (
    ActorUnavailableError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from actors.dispatch.cluster import ActorDied, ActorUnavailable, EngineGone, EngineRestarts
from actors.dispatch.ray_actors import RayEngineActor, RayJobActor
from actors.worker.engine_host import EngineDied, EngineState
from engine.activity import ActivityKind
from events.memory.queues import MemoryJobQueue
from tests.support.events import folded, submitted

STANDS_BY = RayTaskError("check", "", EngineDied("It stands by.")).as_instanceof_cause()


class FailingMethod:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def remote(self, *_: object, **__: object) -> None:
        raise self._error


class FailingHandle:
    """A handle of an actor, each of whose methods raises."""

    def __init__(self, error: Exception) -> None:
        self._method = FailingMethod(error)

    def __getattr__(self, name: str) -> FailingMethod:
        return self._method


async def nothing(_holder: object) -> None:
    pass


@pytest.mark.parametrize("method", ["ready", "state", "wait_idle"])
async def test_a_job_actor_that_cannot_be_asked_is_unavailable(method: str) -> None:
    actor = RayJobActor(FailingHandle(RaySystemError("away")))
    with pytest.raises(ActorUnavailable):
        await getattr(actor, method)()


async def test_a_job_actor_that_cannot_be_asked_takes_no_delivery() -> None:
    actor = RayJobActor(FailingHandle(RaySystemError("away")))
    entry = MemoryJobQueue().entry("a-job", "1")
    assert not await actor.take_delivery(entry, timeout_s=1)


@pytest.mark.parametrize("error", [RayError(), RaySystemError("away"), RayActorError()])
async def test_a_job_actor_that_died_says_so_whatever_ray_says(error: Exception) -> None:
    entry, job = MemoryJobQueue().entry("a-job", "1"), folded([submitted()])
    with pytest.raises(ActorDied, match=r"."):
        await RayJobActor(FailingHandle(error)).run(entry, job)


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (RaySystemError("away"), ActorUnavailable),
        (RayActorError(), EngineGone),
        (ActorUnavailableError("it is restarted", b"a" * 16), EngineRestarts),
        (STANDS_BY, EngineRestarts),
        (RayTaskError("check", "", RuntimeError("unforeseen")), ActorUnavailable),
    ],
)
async def test_an_engine_that_is_gone_is_told_from_one_that_does_not_answer(
    said: Exception, heard: type[Exception]
) -> None:
    with pytest.raises(heard) as raised:
        await RayEngineActor(FailingHandle(said), add_standby=nothing, end=nothing).check()
    assert raised.type is heard


class Method:
    def __init__(self, function: Callable[[], Awaitable[object]]) -> None:
        self._function = function

    def remote(self) -> Awaitable[object]:
        return self._function()


class EngineHandle:
    """A handle of an engine's process, which may have the device."""

    def __init__(self, *, has_device: bool = False) -> None:
        self.holds = has_device
        self.checks = 0
        self.state = EngineState(ActivityKind.IDLE, 120.0, jobs=7)
        self.error: Exception | None = None
        self.has_device = Method(lambda: self._answer(self.holds))
        self.check = Method(self._check)

    async def _check(self) -> object:
        self.checks += 1
        return await self._answer(self.state)

    async def _answer(self, value: object) -> object:
        if self.error is not None:
            raise self.error
        return value


async def test_of_two_processes_the_one_with_the_device_is_the_engine() -> None:
    first, second = EngineHandle(has_device=True), EngineHandle()
    with_standby: list[object] = []

    async def add(holder: object) -> None:
        with_standby.append(holder)

    engine = RayEngineActor(first, second, add_standby=add, end=nothing)
    for _ in range(2):
        assert (await engine.check()).jobs == 7
    assert (first.checks, second.checks, with_standby) == (2, 0, [first])


async def test_a_dead_engine_is_gone_and_found_again_in_the_other_process() -> None:
    first, second = EngineHandle(has_device=True), EngineHandle()
    await (engine := RayEngineActor(first, second, add_standby=nothing, end=nothing)).check()
    first.error, second.holds = RayActorError(), True
    with pytest.raises(EngineGone):
        await engine.check()
    await RayEngineActor(first, second, add_standby=nothing, end=nothing).check()
    assert second.checks == 1


async def test_an_engine_says_how_long_its_work_may_keep_it_from_answering() -> None:
    handle = EngineHandle(has_device=True)
    engine = RayEngineActor(handle, add_standby=nothing, end=nothing)
    assert (await engine.check()).works_s == 0.0
    handle.state = EngineState(ActivityKind.LOAD, 500.0, jobs=7)
    assert (await engine.check()).works_s == 500.0


async def test_it_is_the_process_with_the_device_that_is_ended() -> None:
    first, second = EngineHandle(), EngineHandle(has_device=True)
    ended: list[object] = []

    async def end(holder: object) -> None:
        ended.append(holder)

    engine = RayEngineActor(first, second, add_standby=nothing, end=end)
    await engine.kill()
    assert ended == [], "nobody knows which one it is"
    await engine.check()
    await engine.kill()
    assert ended == [second]


async def test_while_no_process_has_the_device_the_engine_is_unavailable() -> None:
    both = EngineHandle(), EngineHandle()
    with pytest.raises(ActorUnavailable, match="no engine has the device"):
        await RayEngineActor(*both, add_standby=nothing, end=nothing).check()


async def test_each_answer_of_an_engine_is_told() -> None:
    handle, told = EngineHandle(has_device=True), list[EngineState]()
    engine = RayEngineActor(handle, add_standby=nothing, end=nothing, on_state=told.append)
    await engine.check()
    handle.error = RayActorError()
    with pytest.raises(EngineGone):
        await engine.check()
    assert told == [handle.state]
