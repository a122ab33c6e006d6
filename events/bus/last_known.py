"""What the event log last said of itself, asked for by one call at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from events.errors import LogUnavailable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Answer(Generic[T]):
    value: T
    at: float


class LastKnown(Generic[T]):
    """A value that is asked for once in a period, however many want to know it.

    While it cannot be had, the last answer counts, until it is too old.
    """

    def __init__(
        self,
        ask: Callable[[], Awaitable[T]],
        *,
        period_s: float,
        oldest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask` raises LogUnavailable, and in a time that callers can wait."""
        self._ask = ask
        self._period_s = period_s
        self._oldest_s = oldest_s
        self._clock = clock
        self._answer: _Answer[T] | None = None
        self._ask_again_at = clock()
        self._asking: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Raises LogUnavailable if there is no answer, or only one that is too old."""
        if self._asking is None and self._clock() >= self._ask_again_at:
            self._asking = asyncio.create_task(self._refresh())
        if (asking := self._asking) is not None:
            await asyncio.wait({asking})  # a caller who hangs up leaves it to the others
            asking.result()
        answer = self._answer
        if answer is None or self._clock() - answer.at > self._oldest_s:
            raise LogUnavailable(
                f"The event log has not said for {self._oldest_s:g} s how full it is and how many "
                "jobs wait. Nothing was stored; try again."
            )
        return answer.value

    async def _refresh(self) -> None:
        try:
            self._answer = _Answer(await self._ask(), self._clock())
        except LogUnavailable:
            pass  # the last answer counts
        finally:
            self._ask_again_at = self._clock() + self._period_s
            self._asking = None
