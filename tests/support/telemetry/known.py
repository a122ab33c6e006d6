"""Every metric that the service has, as Prometheus names its samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from events.log import StreamState
from events.store.read_model import ReadModel
from telemetry.api_metrics import ApiMetrics
from telemetry.callback_metrics import Breakers, CallbackMetrics
from telemetry.dispatcher_metrics import DispatchMetrics, EngineMetrics
from telemetry.exposition import EndpointLabels
from telemetry.projection_metrics import JobMetrics, LogMetrics
from tests.support.database import database_in
from tests.support.memory.queues import MemoryJobQueue

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


async def known_metrics(folder: Path) -> list[Metric]:
    """Return all families except those of processes."""
    edge = ApiMetrics(_no_answer)
    counted = CollectorRegistry()
    JobMetrics(counted, most_endpoints=1)
    CallbackMetrics(counted)
    engines = EngineMetrics(counted, endpoints=EndpointLabels(1))
    dispatched = DispatchMetrics(
        queue=MemoryJobQueue(), statuses=_no_endpoints, endpoints=EndpointLabels(1)
    )
    async with database_in(folder) as database:
        log = LogMetrics(ReadModel(database), states=_streams, stored_after=_nothing_after)
        collectors = (
            engines.collect,
            dispatched.collect,
            Breakers(lambda: 0).collect,
            log.collect,
        )
        collected = [metric for collect in collectors for metric in await collect()]
    families = [*counted.collect(), *edge.registry.collect(), *collected]
    return [each for each in families if not each.name.startswith("process_")]


def sample_names(metrics: Iterable[Metric]) -> set[str]:
    return {f"{each.name}{suffix}" for each in metrics for suffix in _SUFFIXES[each.type]}


def shown_name(metric: Metric) -> str:
    """Return the name that the page shows after `# TYPE`."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


async def _no_answer() -> list[bytes]:
    return []


async def _no_endpoints() -> Mapping[str, Mapping[str, Any]]:
    return {}


async def _streams() -> Mapping[str, StreamState]:
    return {"JOBS": StreamState(0, 0, max_bytes=1, last_sequence=0)}


async def _nothing_after(_position: int) -> datetime | None:
    return None
