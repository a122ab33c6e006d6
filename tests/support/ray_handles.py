"""Handles of Ray actors whose answers a test gives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from actors.worker.engine_process import EngineState
from engine.activity import ActivityKind


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
        self.state = EngineState(ActivityKind.IDLE, 120.0, jobs=7)
        self.error: Exception | None = None
        """The exceptions that the methods raise, by method."""
        self.has_device = Method(self._has_device)
        self.check = Method(self._check)

    async def _has_device(self) -> bool:
        self._fail()
        return self.holds

    async def _check(self) -> EngineState:
        self._fail()
        self.checks += 1
        return self.state

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error
