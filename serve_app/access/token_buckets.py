"""Token buckets: they allow a burst at once, and a rate after that."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable

_ROUNDING_S = 1e-6
"""Tolerance for rounding: without it Retry-After could be a whole second too long."""
_DROPPED_PART = 10
"""One bucket in so many is dropped where there are too many: dropping looks at all of them."""


class TokenBuckets:
    """One bucket for each name, within this process.

    A bucket that is full again says nothing and goes first. Where more than `max_names` are not,
    those that are nearest to full go. So nobody gains by making others' buckets go, nor their own:
    the emptiest ones stay.
    """

    def __init__(
        self, *, max_names: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_names = max_names
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """For each name, the time at which its bucket is full again."""

    def take(self, name: str, *, rate_per_s: float, burst: float) -> int:
        """Take a token. Returns 0, or else the whole seconds until there is one."""
        if wait_s := self.wait_s(name, rate_per_s=rate_per_s, burst=burst):
            return wait_s
        self._full_at[name] = self._full_after_one(name, rate_per_s)
        if len(self._full_at) > self._max_names:
            self._drop_fullest()
        return 0

    def wait_s(self, name: str, *, rate_per_s: float, burst: float) -> int:
        """The whole seconds until there is a token, 0 where there is one. Takes none."""
        wait_s = self._full_after_one(name, rate_per_s) - self._clock() - burst / rate_per_s
        return math.ceil(wait_s - _ROUNDING_S) if wait_s > _ROUNDING_S else 0

    def left(self, name: str, *, rate_per_s: float, burst: float) -> float:
        """How many tokens there are. Takes none."""
        missing_s = self._full_after_one(name, rate_per_s) - self._clock() - 1 / rate_per_s
        return max(0.0, burst - max(0.0, missing_s - _ROUNDING_S) * rate_per_s)

    def _full_after_one(self, name: str, rate_per_s: float) -> float:
        now = self._clock()
        return max(self._full_at.get(name, now), now) + 1 / rate_per_s

    def _drop_fullest(self) -> None:
        count = max(self._max_names // _DROPPED_PART, 1)
        for name in heapq.nsmallest(count, self._full_at, key=self._full_at.__getitem__):
            del self._full_at[name]
