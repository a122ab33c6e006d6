"""Heartbeat: whether the engine of a run still answers, by what it said that it does."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from actors.worker.engine_host import EngineClient, EngineDied


class Heartbeat:
    """Asks the engine every `period_s`. Whether it makes progress is its own watchdog's business.

    It may be silent for `silence_s` beyond the time that it said its present work may take: a load
    may leave it no time to answer. `start_s`: how long its first answer may take besides.
    """

    def __init__(
        self, engine: EngineClient, *, period_s: float, silence_s: float, start_s: float
    ) -> None:
        self._engine = engine
        self._period_s = period_s
        self._silence_s = silence_s
        self._heard_at = time.monotonic()
        self._may_work_s = start_s

    @property
    def patience_s(self) -> float:
        """How long it may be silent after its last answer."""
        return self._may_work_s + self._silence_s

    def is_silent(self) -> bool:
        return time.monotonic() - self._heard_at > self.patience_s

    async def listen(self) -> None:
        """Until cancelled."""
        while True:
            with suppress(EngineDied):  # the run itself says so, and better
                state = await self._engine.check()
                self._heard_at, self._may_work_s = time.monotonic(), state.seconds_left
            await asyncio.sleep(self._period_s)
