"""An engine for tests of what stands around it: it says what it is told to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np

from actors.worker.engine_host import EngineDied, Order
from engine.reports import EngineEvent, Finished, ImageReady, Progress


class ScriptedEngine:
    """Steps and pictures at the pace of `advance`; `None` in the script means: die here."""

    def __init__(self, script: list[EngineEvent | None], *, gated: bool = False) -> None:
        self.script = script
        self.orders: list[Order] = []
        self.kills = 0
        self._gate = asyncio.Semaphore(0) if gated else None

    def advance(self, events: int = 1) -> None:
        assert self._gate is not None
        for _ in range(events):
            self._gate.release()

    async def run(self, order: Order) -> AsyncGenerator[EngineEvent]:
        self.orders.append(order)
        for event in self.script:
            if self._gate is not None:
                await self._gate.acquire()
            if event is None:
                raise EngineDied("The engine died: killed")
            yield event

    async def steps_done(self) -> int:
        return 0

    async def kill(self) -> None:
        self.kills += 1


def picture(index: int = 0, *, seed: int = 7) -> ImageReady:
    return ImageReady(index, "9", np.full((8, 8, 3), 40 * index, np.uint8), seed)


def pictures(count: int) -> list[EngineEvent | None]:
    """The script of a job that goes well."""
    return [Progress(1, 1), *(picture(index) for index in range(count)), Finished(count)]
