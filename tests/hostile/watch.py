"""The effects on others: answers to `GET /health/live`, long ticks, and the engine's memory."""

from __future__ import annotations

from contextlib import suppress

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.support.probe import Probe
from tests.support.service import Service

LONG_TICK_S = 0.1
"""A bucket of `darkroom_event_loop_tick_cpu_seconds`."""


class Watch(Probe):
    def __init__(self, service: Service) -> None:
        super().__init__(service.port, "/health/live", period_s=0.05, on_answer=self._look)
        self._service = service
        self.engine_bytes = 0
        """The largest resident memory of an engine since `begin`."""
        self._long_ticks = self._all_long_ticks()

    def begin(self) -> None:
        super().begin()
        self.engine_bytes = 0

    def long_ticks(self) -> float:
        """Return how often the event loop of a replica was blocked since the previous call."""
        before, self._long_ticks = self._long_ticks, self._all_long_ticks()
        return self._long_ticks - before

    def _all_long_ticks(self) -> float:
        answer = self._service.http.get("/metrics").raise_for_status()
        samples = [
            (each.name.rpartition("_")[2], each.labels.get("le"), each.value)
            for family in text_string_to_metric_families(answer.text)
            if family.name == "darkroom_event_loop_tick_cpu_seconds"
            for each in family.samples
        ]
        every = sum(value for name, _, value in samples if name == "count")
        return every - sum(value for _, le, value in samples if le == str(LONG_TICK_S))

    def _look(self) -> None:
        for process in self._service.processes("ray::EngineProcess"):
            with suppress(psutil.NoSuchProcess):
                self.engine_bytes = max(self.engine_bytes, process.memory_info().rss)
