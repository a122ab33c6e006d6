"""The counters of an HTTP replica, and the page with the metrics of all processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter

from settings.constant import constant
from telemetry.event_loop import EventLoopMonitor
from telemetry.exposition import MetricsSnapshot, ProcessMetrics, page_of

logger = logging.getLogger(__name__)

QueryProcesses: TypeAlias = Callable[[], Awaitable[list[bytes]]]
"""A function that returns the encoded metrics of the other processes that answer in time."""

_PERIOD_S = constant("METRICS_PAGE_S", 1.0)
"""Seconds for which a page is reused, to limit how often the processes are queried."""


_ALERTS = ("internal", "log_full", "unavailable")
"""The reasons with series that start at 0. Prometheus would see no increase in a series that starts
at 1.
"""


class ApiMetrics:
    def __init__(self, ask: QueryProcesses, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._process = ProcessMetrics("api")
        self._ask = ask
        self._clock = clock
        self._refused = Counter(
            "darkroom_requests_refused",
            "Requests that were answered by an error, by its type.",
            ["reason"],
            registry=self._process.registry,
        )
        for reason in _ALERTS:
            self._refused.labels(reason)
        self.event_loop = EventLoopMonitor(self._process.registry)
        self._making = asyncio.Lock()
        self._page = b""
        self._made_at = float("-inf")

    @property
    def registry(self) -> CollectorRegistry:
        return self._process.registry

    def note_refusal(self, reason: str) -> None:
        """Count a refused request. `reason` is the type of the error, from a fixed set of types."""
        self._refused.labels(reason).inc()

    async def encoded(self) -> bytes:
        return await self._process.encoded()

    async def page(self) -> bytes:
        """Return the page with the metrics of this process and of all processes that answer."""
        async with self._making:
            if self._clock() - self._made_at >= _PERIOD_S:
                self._page = await self._make()
                self._made_at = self._clock()
            return self._page

    async def _make(self) -> bytes:
        answers = await self._ask()
        own = await self._process.snapshot()
        snapshots = {own.process: own}
        for answer in answers:
            try:
                other = MetricsSnapshot.decode(answer)
            except ValueError as error:
                fields = {"action": "metrics", "error": str(error)}
                logger.warning("invalid metrics of another process were ignored", extra=fields)
                continue
            snapshots.setdefault(other.process, other)
        return page_of(snapshots.values())
