"""The effects on others: answers to `GET /health/live`, and the engine's memory."""

from __future__ import annotations

from contextlib import suppress

import psutil

from tests.support.probe import Probe
from tests.support.service import Service


class Watch(Probe):
    def __init__(self, service: Service) -> None:
        super().__init__(service.port, "/health/live", period_s=0.05, on_answer=self._look)
        self._service = service
        self.engine_bytes = 0
        """The largest resident memory of an engine since `begin`."""

    def begin(self) -> None:
        super().begin()
        self.engine_bytes = 0

    def _look(self) -> None:
        for process in self._service.processes("ray::EngineProcess"):
            with suppress(psutil.NoSuchProcess):
                self.engine_bytes = max(self.engine_bytes, process.memory_info().rss)
