"""Metrics in the Prometheus text format, for one process and as a page of all processes.

Each process encodes its own metrics as text, with its role and its name as labels. The page joins
the texts of all processes. If a process does not answer, only its metrics are missing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout
from settings.constant import constant
from settings.version import VERSION

logger = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
CollectMetrics: TypeAlias = Callable[[], Awaitable[Iterable[Metric]]]
"""A function that computes metrics. Raises DatabaseUnavailable, LogUnavailable, ReadTimeout."""

METRICS_TIMEOUT_S = constant("METRICS_TIMEOUT_S", 2.0)
"""Seconds that a request for `/metrics` waits for other processes. Later answers are left out."""
_UNAVAILABLE = (DatabaseUnavailable, LogUnavailable, ReadTimeout, TimeoutError)


@dataclass(frozen=True, slots=True)
class Family:
    """All samples of one metric in one process."""

    head: str
    """The HELP line and the TYPE line."""
    samples: str


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """The metrics of one process."""

    process: str
    families: Mapping[str, Family]

    def encode(self) -> bytes:
        families = {name: [each.head, each.samples] for name, each in self.families.items()}
        return zlib.compress(json.dumps({"process": self.process, "families": families}).encode())

    @classmethod
    def decode(cls, data: bytes) -> MetricsSnapshot:
        """Decode metrics. Raises ValueError, also for the format of another version."""
        try:
            content = json.loads(zlib.decompress(data))
            families = {name: Family(*each) for name, each in content["families"].items()}
            return cls(content["process"], families)
        except (zlib.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError("not the metrics of a process") from error


class ProcessMetrics:
    """The metrics of this process, labelled with its role."""

    def __init__(
        self,
        role: str,
        *,
        collect_timeout_s: float = METRICS_TIMEOUT_S / 2,
        process: str | None = None,
    ) -> None:
        """`collect_timeout_s` is the time-out in seconds of each function given to `add`.

        `process` is a name that no other process has, by default the host name and the process id.
        """
        self.registry = CollectorRegistry()
        self.process = process or f"{socket.gethostname()}:{os.getpid()}"
        self._labels = {"role": role, "process": self.process}
        self._collect_timeout_s = collect_timeout_s
        self._collectors: list[CollectMetrics] = []
        ProcessCollector(registry=self.registry)
        info = Gauge("darkroom_info", "1 for each process.", ["version"], registry=self.registry)
        info.labels(VERSION).set(1)

    def add(self, collect: CollectMetrics) -> None:
        self._collectors.append(collect)

    async def snapshot(self) -> MetricsSnapshot:
        """Return the current metrics. Metrics that cannot be computed are left out."""
        found = await asyncio.gather(*map(self._computed, self._collectors))
        metrics = chain(self.registry.collect(), *found)
        return MetricsSnapshot(self.process, dict(self._family(metric) for metric in metrics))

    async def _computed(self, collect: CollectMetrics) -> Iterable[Metric]:
        try:
            async with asyncio.timeout(self._collect_timeout_s):
                return await collect()
        except _UNAVAILABLE as error:
            fields = {"action": "metrics", "error": str(error) or type(error).__name__}
            logger.info("metrics could not be computed", extra=fields)
            return ()

    async def encoded(self) -> bytes:
        return (await self.snapshot()).encode()

    def _family(self, metric: Metric) -> tuple[str, Family]:
        metric.samples = [
            sample._replace(labels={**self._labels, **sample.labels})
            for sample in metric.samples
            if not sample.name.endswith("_created")
        ]
        lines = generate_latest(_Alone(metric)).decode().splitlines(keepends=True)
        head = "".join(line for line in lines if line.startswith("#"))
        return metric.name, Family(head, "".join(lines).removeprefix(head))


class _Alone(CollectorRegistry):
    """A registry with one metric, because the text encoder takes only registries."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def page_of(snapshots: Iterable[MetricsSnapshot]) -> bytes:
    """Join the metrics of processes. The format requires all samples of a metric in one block."""
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for each in sorted(snapshots, key=lambda one: one.process):
        for name, family in each.families.items():
            heads.setdefault(name, family.head)
            samples.setdefault(name, []).append(family.samples)
    return "".join(heads[name] + "".join(samples[name]) for name in sorted(heads)).encode()


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"darkroom_{name}", text, value=value)


def gauge_by(label: str, name: str, text: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a gauge with one label, and a sample for each value of that label."""
    family = GaugeMetricFamily(f"darkroom_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


MOST_ENDPOINTS = constant("METRICS_ENDPOINTS", 50)
"""The largest number of endpoints that have their own label while the process runs."""
OTHER = "other"
"""The label of all further endpoints."""


class EndpointLabels:
    """Labels for endpoint ids.

    The number of labels is limited, because owners may create endpoints, and a process never
    removes the series of an endpoint.
    """

    def __init__(
        self, most: int = MOST_ENDPOINTS, *, on_new: Callable[[str], None] = lambda _: None
    ) -> None:
        """`on_new` is called with each label before its first use."""
        self._most = most
        self._on_new = on_new
        self._known: set[str] = set()

    def of(self, endpoint: str) -> str:
        if endpoint in self._known:
            return endpoint
        label = endpoint if len(self._known) < self._most else OTHER
        if label not in self._known:
            self._known.add(label)
            self._on_new(label)
        return label
