"""A scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import closing

import numpy as np

from actors.worker.engine_process import EngineDied, EngineState, RemoteEngine, RunRequest
from actors.worker.run_mark import RunMarkWriter
from engine.activity import ActivityKind
from engine.reports import EngineEvent, Finished, ImageReady, Progress
from events.types import ComfyUIServer

LANE = 3


class ScriptedEngine(RemoteEngine):
    """An engine that reports the items of its script and dies at None.

    A gated engine reports nothing until `advance` lets it. One that is not `active` works for other
    jobs. One that is `silent` does not answer.
    """

    def __init__(
        self,
        script: list[EngineEvent | None],
        *,
        gated: bool = False,
        active: bool = True,
        silent: bool = False,
    ) -> None:
        super().__init__()
        self.script = script
        self.active = active
        self.silent = silent
        self.state = EngineState(ActivityKind.CALL, 0.0, jobs=4)
        self.requests: list[RunRequest] = []
        self.server: ComfyUIServer | None = None
        self.kills = 0
        self._gate = asyncio.Semaphore(0) if gated else None

    def advance(self, events: int = 1) -> None:
        assert self._gate is not None
        for _ in range(events):
            self._gate.release()

    async def run(self, request: RunRequest) -> AsyncGenerator[EngineEvent]:
        self.requests.append(request)
        with closing(RunMarkWriter(request.mark)) as mark:
            mark.set_active(self.active)
        for event in self.script:
            if self._gate is not None:
                await self._gate.acquire()
            if event is None:
                raise EngineDied("The engine died: killed")
            yield event

    async def check(self) -> EngineState:
        if self.silent:
            raise EngineDied("no answer in time")
        return self.state

    async def comfyui_server(self) -> ComfyUIServer | None:
        return self.server

    async def kill(self) -> None:
        self.kills += 1


def picture(index: int = 0, *, seed: int = 7) -> ImageReady:
    return ImageReady(index, "9", np.full((8, 8, 3), 40 * index, np.uint8), seed)


def pictures(count: int) -> list[EngineEvent | None]:
    """Return the script of a successful job."""
    return [Progress(1, 1), *(picture(index) for index in range(count)), Finished(count)]
