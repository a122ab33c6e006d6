"""Metrics as Prometheus reads them: those of one process, and one page of those of all.

Each process says its own by families, which are text already, with its role and itself as labels.
So whoever makes the page only puts the families together, and a process that did not answer leaves
a gap and moves no other number.
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
from prometheus_client.metrics_core import Metric

from events.errors import DatabaseUnavailable, LogUnavailable, ReadTimeout
from settings.version import VERSION

logger = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
Look: TypeAlias = Callable[[], Awaitable[Iterable[Metric]]]
"""What is looked up only when somebody asks. Raises DatabaseUnavailable, LogUnavailable."""

_OUT_OF_REACH = (DatabaseUnavailable, LogUnavailable, ReadTimeout, TimeoutError)


@dataclass(frozen=True, slots=True)
class Family:
    """All samples that one process has of a metric."""

    head: str
    """Its help and its type, a line each."""
    samples: str


@dataclass(frozen=True, slots=True)
class Said:
    """What one process says."""

    process: str
    families: Mapping[str, Family]

    def encode(self) -> bytes:
        families = {name: [each.head, each.samples] for name, each in self.families.items()}
        return zlib.compress(json.dumps({"process": self.process, "families": families}).encode())

    @classmethod
    def decode(cls, data: bytes) -> Said:
        """Raises ValueError, also where a version said it that says it otherwise."""
        try:
            content = json.loads(zlib.decompress(data))
            families = {name: Family(*each) for name, each in content["families"].items()}
            return cls(content["process"], families)
        except (zlib.error, KeyError, TypeError, AttributeError) as error:
            raise ValueError("not the metrics of a process") from error


class ProcessMetrics:
    """The metrics of this process, under the name of its role."""

    def __init__(self, role: str, *, look_s: float = 1.0, process: str | None = None) -> None:
        """`look_s`: how long a look may take, so that who asks still gets the rest in time.
        `process`: a name that no other process has; if it is not given, host and id.
        """
        self.registry = CollectorRegistry()
        self.process = process or f"{socket.gethostname()}:{os.getpid()}"
        self._labels = {"role": role, "process": self.process}
        self._look_s = look_s
        self._looks: list[Look] = []
        ProcessCollector(registry=self.registry)
        info = Gauge("darkroom_info", "1 for each process.", ["version"], registry=self.registry)
        info.labels(VERSION).set(1)

    def add(self, look: Look) -> None:
        self._looks.append(look)

    async def said(self) -> Said:
        """As they are now. What cannot be looked up is left out."""
        found = await asyncio.gather(*map(self._looked_up, self._looks))
        metrics = chain(self.registry.collect(), *found)
        return Said(self.process, dict(self._family(metric) for metric in metrics))

    async def _looked_up(self, look: Look) -> Iterable[Metric]:
        """Nothing where that is out of reach, or does not answer in time."""
        try:
            async with asyncio.timeout(self._look_s):
                return await look()
        except _OUT_OF_REACH as error:
            fields = {"action": "metrics", "error": str(error) or type(error).__name__}
            logger.info("not looked up", extra=fields)
            return ()

    async def encoded(self) -> bytes:
        return (await self.said()).encode()

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
    """A registry of one metric, as it is now."""

    def __init__(self, metric: Metric) -> None:
        super().__init__()
        self._metric = metric

    def collect(self) -> Iterable[Metric]:
        return [self._metric]


def page_of(said: Iterable[Said]) -> bytes:
    """All samples of a metric stand together, whichever process they are of."""
    heads: dict[str, str] = {}
    samples: dict[str, list[str]] = {}
    for each in sorted(said, key=lambda one: one.process):
        for name, family in each.families.items():
            heads.setdefault(name, family.head)
            samples.setdefault(name, []).append(family.samples)
    return "".join(heads[name] + "".join(samples[name]) for name in sorted(heads)).encode()
