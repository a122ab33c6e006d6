"""EngineMetrics: what the engines of all workers say of their models and their memory.

Each counts since its own process started. What it says more than the last time is added to the
endpoint's count, so that the end of an engine takes nothing away. What it says first adds nothing:
it is asked before it gets a job, and what one did before it was found is in the counts of others.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import Metric

from engine.activity import ModelUse
from telemetry.gauges import gauge_by
from telemetry.labels import EndpointLabels

_SILENT_S = 30.0
"""An engine that said nothing for so long is gone, as far as its memory is meant."""
_FORGOTTEN_S = 3600.0
"""As far as its counts are meant: one that loads a model says nothing for minutes."""


_COUNTED = ("loaded", "loaded_bytes", "evicted", "evicted_bytes", "hits")


@dataclass(frozen=True, slots=True)
class _Engine:
    endpoint: str
    label: str
    """Of the endpoint."""
    models: ModelUse
    memory_bytes: int
    heard_at: float


class EngineMetrics:
    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        endpoints: EndpointLabels,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"darkroom_{name}", text, ["endpoint"], registry=registry)

        self._endpoints = endpoints
        self._clock = clock
        self._engines: dict[str, _Engine] = {}
        """By worker."""
        self._counters = {
            "loaded": counter("models_loaded", "Models loaded."),
            "loaded_bytes": counter("models_loaded_bytes", "Bytes of the models loaded."),
            "evicted": counter("models_evicted", "Models dropped to make room."),
            "evicted_bytes": counter("models_evicted_bytes", "Bytes of the models dropped."),
            "hits": counter("model_cache_hits", "Models asked for that were in memory."),
        }

    def note(self, worker: str, endpoint: str, models: ModelUse, memory_bytes: int) -> None:
        label, before = self._endpoints.of(endpoint), self._engines.get(worker)
        known = models if before is None else before.models
        if not _goes_on(known, models):
            known = ModelUse()
        for name, counter in self._counters.items():
            counter.labels(label).inc(getattr(models, name) - getattr(known, name))
        self._engines[worker] = _Engine(endpoint, label, models, memory_bytes, self._clock())

    def forget(self, endpoint: str) -> None:
        """Another process has its engines from now on, and says what they are."""
        self._engines = {
            worker: engine
            for worker, engine in self._engines.items()
            if engine.endpoint != endpoint
        }

    async def look(self) -> Iterable[Metric]:
        now = self._clock()
        self._engines = {
            worker: engine
            for worker, engine in self._engines.items()
            if now - engine.heard_at < _FORGOTTEN_S
        }
        held, memory = defaultdict[str, int](int), defaultdict[str, int](int)
        for engine in self._engines.values():
            if now - engine.heard_at < _SILENT_S:
                held[engine.label] += engine.models.held_bytes
                memory[engine.label] += engine.memory_bytes
        return [
            gauge_by("endpoint", "models_bytes", "Bytes of the models in memory.", held),
            gauge_by(
                "endpoint",
                "engine_resident_memory_bytes",
                "Resident memory of the engines' processes.",
                memory,
            ),
        ]


def _goes_on(before: ModelUse, now: ModelUse) -> bool:
    """Whether the same process can have said both."""
    return all(getattr(now, name) >= getattr(before, name) for name in _COUNTED)
