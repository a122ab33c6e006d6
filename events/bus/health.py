"""Is the event log there, has it room, does its disk still take writes?"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Generic, TypeVar

from events.bus.bus import Bus
from events.bus.errors import NoAnswer
from events.bus.last_known import LastKnown
from events.bus.streams import log_stream_names
from events.errors import LogFull, LogUnavailable
from events.retry import pause

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FILL_PERIOD_S = 1.0
_CANARY_SUBJECT = "canary.ready"
_CANARY_TIMEOUT_S = 2.0


async def tell_log_size(bus: Bus, *, configured: int) -> None:
    """Say once where the log has another `max_bytes` than the settings: no start changes it."""
    while True:
        await bus.wait_connected()
        try:
            names = log_stream_names(bus.log_streams)
            sizes = [await bus.max_bytes(name) for name in names]
        except LogUnavailable:
            await pause(1)
            continue
        if set(sizes) != {bus.log_streams.bytes_each(configured)}:
            logger.warning(
                "the log keeps the size that it has; see the operations guide to change it",
                extra={"action": "prepare", "max_bytes": sum(sizes), "configured": configured},
            )
        return


async def _fullest(bus: Bus) -> float:
    """Raises LogUnavailable."""
    return max(await asyncio.gather(*map(bus.fill, log_stream_names(bus.log_streams))))


@dataclass(slots=True)
class _Cached(Generic[T]):
    value: T
    until: float


class JetStreamHealth:
    """Answers from a short cache, so that nobody can make it work by asking often."""

    def __init__(self, bus: Bus, *, ready_period_s: float, known_s: float) -> None:
        """`known_s`: how long what the log last said counts while it does not answer."""
        self._bus = bus
        self._ready_period_s = ready_period_s
        self._fill = LastKnown(lambda: _fullest(bus), period_s=_FILL_PERIOD_S, oldest_s=known_s)
        self._ready: _Cached[str | None] = _Cached(None, 0.0)

    async def fill(self) -> float:
        """How much of the log's `max_bytes` is used, 0..1; of several streams of the fullest.

        Raises LogUnavailable.
        """
        return await self._fill.get()

    async def ready(self) -> str | None:
        """None if the log takes writes, else why not: only a write shows that a disk is full."""
        if not self._bus.is_connected:
            return self._bus.refusal or str(LogUnavailable())
        if time.monotonic() >= self._ready.until:
            reason = await self._write_canary()
            self._ready = _Cached(reason, time.monotonic() + self._ready_period_s)
        return self._ready.value

    async def _write_canary(self) -> str | None:
        try:
            await self._bus.store(_CANARY_SUBJECT, b"", timeout_s=_CANARY_TIMEOUT_S)
        except (LogUnavailable, LogFull) as error:
            return str(error)
        except NoAnswer:
            return f"the event log did not take a write within {_CANARY_TIMEOUT_S:g} s"
        return None
