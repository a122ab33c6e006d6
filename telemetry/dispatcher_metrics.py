"""Metrics of the dispatcher: the queues and workers of endpoints, and the models of engines."""

from __future__ import annotations

import collections
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from engine.interface import ModelUse
from events.bus.queues import JobQueue
from telemetry.exposition import EndpointLabels, gauge_by

Statuses: TypeAlias = Callable[[], Awaitable[Mapping[str, Mapping[str, Any]]]]
"""A function that returns `EndpointStatus.describe()` of each endpoint, by endpoint id."""

_WORKER_STATES = ("starting", "ready", "leaving")


class DispatchMetrics:
    """Metrics of the queues and the workers of the dispatcher's endpoints."""

    def __init__(self, *, queue: JobQueue, statuses: Statuses, endpoints: EndpointLabels) -> None:
        self._queue = queue
        self._statuses = statuses
        self._endpoints = endpoints

    async def collect(self) -> Iterable[Metric]:
        """Compute the metrics. Raises LogUnavailable, ReadTimeout."""
        depth, oldest, running = (defaultdict[str, float](float) for _ in range(3))
        workers = collections.Counter[tuple[str, str]]()
        for id, status in (await self._statuses()).items():
            endpoint = self._endpoints.of(id)
            depth[endpoint] += await self._queue.depth(id)
            age_s = status["oldest_waiting_s"] or 0.0
            oldest[endpoint] = max(oldest[endpoint], age_s)
            running[endpoint] += sum(worker["running"] for worker in status["workers"])
            workers.update({(endpoint, state): 0 for state in _WORKER_STATES})
            workers.update((endpoint, worker["state"]) for worker in status["workers"])
        return [
            gauge_by("endpoint", "queue_jobs", "Jobs that wait or run.", depth),
            gauge_by(
                "endpoint",
                "queue_oldest_seconds",
                "Age of the job that has waited longest.",
                oldest,
            ),
            gauge_by("endpoint", "jobs_running", "Jobs that run on workers.", running),
            _workers(workers),
        ]


def _workers(values: Mapping[tuple[str, str], int]) -> Metric:
    gauge = GaugeMetricFamily("darkroom_workers", "Workers.", labels=["endpoint", "state"])
    for labels, value in values.items():
        gauge.add_metric(labels, value)
    return gauge


_SILENT_S = 30.0
"""Seconds without a report after which the metrics of memory leave out an engine."""
_FORGOTTEN_S = 3600.0
"""Seconds without a report after which the counts of an engine are forgotten. This time is long,
because an engine that loads a model sends no report for minutes.
"""


_COUNTED = ("loaded", "loaded_bytes", "evicted", "evicted_bytes", "hits")


@dataclass(frozen=True, slots=True)
class _Engine:
    endpoint: str
    label: str
    """The metric label of the endpoint."""
    models: ModelUse
    memory_bytes: int
    heard_at: float


class EngineMetrics:
    """Metrics of the models and the memory of all engines.

    Each engine reports its counts since the start of its process. Only their increase between two
    reports is added to the counter of the endpoint, so the counter never falls. The first report of
    an engine adds nothing. A new engine sends its first report before its first job, and another
    process has already counted the earlier work of an older engine.
    """

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
        """The last report of each worker."""
        self._counters = {
            "loaded": counter("models_loaded", "Models loaded."),
            "loaded_bytes": counter("models_loaded_bytes", "Bytes of the models loaded."),
            "evicted": counter("models_evicted", "Models removed to free memory."),
            "evicted_bytes": counter(
                "models_evicted_bytes", "Bytes of the models removed from memory."
            ),
            "hits": counter("model_cache_hits", "Requests for a model that was already in memory."),
        }

    def note(self, worker: str, endpoint: str, models: ModelUse, memory_bytes: int) -> None:
        label, before = self._endpoints.of(endpoint), self._engines.get(worker)
        known = models if before is None else before.models
        if not _continues(known, models):
            known = ModelUse()
        for name, counter in self._counters.items():
            counter.labels(label).inc(getattr(models, name) - getattr(known, name))
        self._engines[worker] = _Engine(endpoint, label, models, memory_bytes, self._clock())

    def forget(self, endpoint: str) -> None:
        """Forget the engines of an endpoint, because another process now reports them."""
        self._engines = {
            worker: engine
            for worker, engine in self._engines.items()
            if engine.endpoint != endpoint
        }

    async def collect(self) -> Iterable[Metric]:
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


def _continues(before: ModelUse, now: ModelUse) -> bool:
    """Return whether both reports can be from the same process, because no count has fallen."""
    return all(getattr(now, name) >= getattr(before, name) for name in _COUNTED)
