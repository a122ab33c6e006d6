"""EdgeMetrics: what an HTTP replica counts, and the page of what all processes say."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter

from telemetry.exposition import ProcessMetrics, Said, page_of

logger = logging.getLogger(__name__)

AskAll: TypeAlias = Callable[[], Awaitable[list[bytes]]]
"""What the processes of the service say of themselves, as far as they do so in time."""

_PERIOD_S = 1.0
"""A page is so old at most, however many ask for it: so often all processes are asked."""


_ALERTS = ("internal", "log_full", "unavailable")
"""Reasons that are said before the first of them: Prometheus sees no rise in what begins with 1."""


class EdgeMetrics:
    def __init__(self, ask: AskAll, *, clock: Callable[[], float] = time.monotonic) -> None:
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
        self._making = asyncio.Lock()
        self._page = b""
        self._made_at = float("-inf")

    @property
    def registry(self) -> CollectorRegistry:
        return self._process.registry

    def note_refusal(self, reason: str) -> None:
        """`reason`: the type of the error, of which the service has a fixed number."""
        self._refused.labels(reason).inc()

    async def encoded(self) -> bytes:
        """What this process says."""
        return await self._process.encoded()

    async def page(self) -> bytes:
        """What all say, this process too where nobody else is reached."""
        async with self._making:
            if self._clock() - self._made_at >= _PERIOD_S:
                self._page = await self._make()
                self._made_at = self._clock()
            return self._page

    async def _make(self) -> bytes:
        answers = await self._ask()
        own = await self._process.said()
        said = {own.process: own}
        for answer in answers:
            try:
                other = Said.decode(answer)
            except ValueError as error:
                fields = {"action": "metrics", "error": str(error)}
                logger.warning("an answer is passed over", extra=fields)
                continue
            said.setdefault(other.process, other)
        return page_of(said.values())
