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
        before, now = self._long_ticks, self._all_long_ticks()
        # A replica that did not answer in time is missing from a page.
        self._long_ticks = before | now
        return sum(count - before.get(process, count) for process, count in now.items())

    def _all_long_ticks(self) -> dict[str, float]:
        """Return the number of long ticks of each process since its start."""
        answer = self._service.http.get("/metrics").raise_for_status()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(answer.text):
            if family.name == "darkroom_event_loop_tick_cpu_seconds":
                for each in family.samples:
                    process = each.labels["process"]
                    if each.name.endswith("_count"):
                        found[process] = found.get(process, 0.0) + each.value
                    elif each.labels.get("le") == str(LONG_TICK_S):
                        found[process] = found.get(process, 0.0) - each.value
        return found

    def _look(self) -> None:
        for process in self._service.processes("ray::EngineProcess"):
            with suppress(psutil.NoSuchProcess):
                self.engine_bytes = max(self.engine_bytes, process.memory_info().rss)
