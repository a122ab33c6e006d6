"""How often a key may ask: a token bucket for each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from events.records import ApiKey
from serve_app.errors import ApiError, retry_after

_ROUNDING_S = 1e-6
"""Sums of fractions are a little off, and a second too many in Retry-After is a lot."""


class Rates:
    """This replica's part of every key's rate and burst.

    Replicas do not talk about it: each grants an equal part, since HAProxy spreads requests evenly.
    A burst is one request at least, so the bursts of all may add up to one less than the replicas
    more than was set.
    """

    def __init__(self, *, replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicas = replicas
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """A bucket is kept as the time at which it is full again."""

    def take(self, key: ApiKey) -> None:
        """One token. Raises ApiError 429 where there is none."""
        limits = key.limits
        if not limits.rate_per_s:
            return
        now = self._clock()
        refill_s = self._replicas / limits.rate_per_s
        burst = max(1.0, (limits.burst or 1) / self._replicas)
        full_at = max(self._full_at.get(key.id, now), now) + refill_s
        wait_s = full_at - now - burst * refill_s
        if wait_s > _ROUNDING_S:
            message = f"The key may send {limits.rate_per_s:g} requests a second."
            headers = retry_after(math.ceil(wait_s - _ROUNDING_S))
            raise ApiError(429, "rate_exceeded", message, headers=headers)
        self._full_at[key.id] = full_at
