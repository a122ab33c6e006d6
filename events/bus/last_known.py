"""What the event log last said of itself, asked for by one call at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from events.errors import LogUnavailable

T = TypeVar("T")

_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    value: T
    at: float


class LastKnown(Generic[T]):
    """A value that is asked for once in a period, however many want to know it.

    While it cannot be had, the last answer counts, until it is too old. Then it is asked for again
    for two seconds: one question that was lost refuses nobody.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        period_s: float,
        oldest_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`ask` raises LogUnavailable, and in a time that callers can wait."""
        self._ask = ask
        self._period_s = period_s
        self._oldest_s = oldest_s
        self._clock = clock
        self._sleep = sleep
        self._silent_since: float | None = None
        """When it was asked for the first time since the last answer."""
        self._answer: _Answer[T] | None = None
        self._ask_again_at = clock()
        self._asking: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Raises LogUnavailable once there was no answer for too long."""
        while True:
            await self._ask_if_due()
            answer, now = self._answer, self._clock()
            if answer is not None and now - answer.at <= self._oldest_s:
                return answer.value
            if self._silent_since is not None and now - self._silent_since >= _PATIENCE_S:
                raise LogUnavailable(
                    "The event log does not say how full it is and how many jobs wait. Nothing was "
                    "stored; try again."
                )
            await self._sleep(max(0.0, self._ask_again_at - now))

    async def _ask_if_due(self) -> None:
        """A caller who hangs up leaves the answer to the others."""
        if self._asking is None and self._clock() >= self._ask_again_at:
            self._asking = asyncio.create_task(self._refresh())
        if (asking := self._asking) is not None:
            await asyncio.wait({asking})
            asking.result()

    async def _refresh(self) -> None:
        began = self._clock()
        try:
            self._answer = _Answer(await self._ask(), self._clock())
            self._silent_since = None
        except LogUnavailable:  # the last answer counts
            if self._silent_since is None:
                self._silent_since = began
        finally:
            self._ask_again_at = self._clock() + self._period_s
            self._asking = None
