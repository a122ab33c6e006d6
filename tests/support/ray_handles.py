"""Handles of Ray actors whose answers a test gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from ray.exceptions import RayTaskError

from actors.worker.engine_process import EngineStandsBy, EngineState
from engine.activity import ActivityKind
from engine.reports import Finished


class Method:
    def __init__(self, function: Callable[[], Awaitable[object]]) -> None:
        self._function = function

    def remote(self) -> Awaitable[object]:
        return self._function()


class EngineHandle:
    """A handle of one of the processes of an engine, which may have the device."""

    def __init__(self, *, has_device: bool = False) -> None:
        self.holds = has_device
        self.checks = 0
        self.runs = 0
        self.state = EngineState(ActivityKind.IDLE, 120.0, jobs=7)
        self.error: Exception | None = None
        """The exceptions that the methods raise, by method."""
        self.has_device = Method(self._has_device)
        self.check = Method(self._check)
        self.run = RunMethod(self)

    async def _has_device(self) -> bool:
        self.fail()
        return self.holds

    async def _check(self) -> EngineState:
        self.fail()
        self.checks += 1
        return self.state

    def fail(self) -> None:
        if self.error is not None:
            raise self.error


class RunMethod:
    """The streaming method `run` of a process. A process without the device stands by."""

    def __init__(self, process: EngineHandle) -> None:
        self._process = process

    def options(self, **_: Any) -> RunMethod:
        return self

    async def remote(self, _: object) -> AsyncGenerator[Awaitable[Finished]]:
        self._process.fail()
        self._process.runs += 1
        yield self._answer()

    async def _answer(self) -> Finished:
        if not self._process.holds:
            error = EngineStandsBy("The process is the standby since it was restarted.")
            raise RayTaskError("EngineProcess.run", "", error).as_instanceof_cause()
        return Finished(1)
