"""Token buckets: they allow a burst at once, and a rate after that."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_NAMES = 10_000
_ROUNDING_S = 1e-6
"""Tolerance for rounding: without it Retry-After could be a whole second too long."""


class TokenBuckets:
    """One bucket for each name, within this process."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """For each name, the time at which its bucket is full again."""

    def take(self, name: str, *, rate_per_s: float, burst: float) -> int:
        """Take a token. Returns 0, or else the whole seconds until there is one."""
        now = self._clock()
        refill_s = 1 / rate_per_s
        full_at = max(self._full_at.get(name, now), now) + refill_s
        wait_s = full_at - now - burst * refill_s
        if wait_s > _ROUNDING_S:
            return math.ceil(wait_s - _ROUNDING_S)
        self._full_at[name] = full_at
        self._full_at.move_to_end(name)
        if len(self._full_at) > _MOST_NAMES:
            self._full_at.popitem(last=False)
        return 0
