"""DispatchMetrics: queues and workers of every endpoint, as its dispatcher knows them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from events.queue import JobQueue
from telemetry.gauges import gauge_by
from telemetry.labels import EndpointLabels

Statuses: TypeAlias = Callable[[], Awaitable[Mapping[str, Mapping[str, Any]]]]
"""What a dispatcher says of each endpoint (`actors.endpoints.status.EndpointStatus.tell`)."""

_WORKER_STATES = ("starting", "ready", "leaving")


class DispatchMetrics:
    def __init__(self, *, queue: JobQueue, statuses: Statuses, endpoints: EndpointLabels) -> None:
        self._queue = queue
        self._statuses = statuses
        self._endpoints = endpoints

    async def look(self) -> Iterable[Metric]:
        """Raises LogUnavailable, ReadTimeout."""
        depth, oldest, running = (defaultdict[str, float](float) for _ in range(3))
        workers = Counter[tuple[str, str]]()
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
                "endpoint", "queue_oldest_seconds", "Age of the job that waits longest.", oldest
            ),
            gauge_by("endpoint", "jobs_running", "Jobs on workers.", running),
            _workers(workers),
        ]


def _workers(values: Mapping[tuple[str, str], int]) -> Metric:
    gauge = GaugeMetricFamily("darkroom_workers", "Workers.", labels=["endpoint", "state"])
    for labels, value in values.items():
        gauge.add_metric(labels, value)
    return gauge
