"""Remembered: what the database says of a name, without waiting for a database that hangs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from events.errors import ServiceError

logger = logging.getLogger(__name__)

V = TypeVar("V")

_TTL_S = 5.0
_MOST_REMEMBERED = 10_000
_PATIENCE_S = 1.0
"""A delivery waits no longer than this for a database that hangs."""


class Remembered(Generic[V]):
    """An answer is kept for 5 s, and for longer while the database is not available."""

    def __init__(
        self,
        ask: Callable[[str], Awaitable[V]],
        *,
        unknown: V,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` may raise ServiceError; before the first answer the value is `unknown`."""
        self._ask_for = ask
        self._unknown = unknown
        self._clock = clock
        self._values: dict[str, tuple[float, V]] = {}
        """The clock's time until which the value counts as known, and the value."""
        self._asking: dict[str, asyncio.Task[V]] = {}
        """One query, for all deliveries that find the value too old."""

    async def get(self, name: str) -> V:
        until, known = self._values.get(name, (0.0, self._unknown))
        if self._clock() < until:
            return known
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = asyncio.create_task(self._ask(name, known))
        await asyncio.wait([asking], timeout=_PATIENCE_S)
        return asking.result() if asking.done() else known

    async def _ask(self, name: str, known: V) -> V:
        value = known
        try:
            value = await self._ask_for(name)
        except ServiceError:
            pass
        except Exception:  # it must not end the delivery of whoever asked
            logger.exception("not known", extra={"action": "remember"})
        finally:
            del self._asking[name]
        self._values.pop(name, None)
        if len(self._values) >= _MOST_REMEMBERED:  # not all: the database may be away
            del self._values[next(iter(self._values))]
        self._values[name] = (self._clock() + _TTL_S, value)
        return value
