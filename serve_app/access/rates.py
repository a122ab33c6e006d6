"""How often a key may ask."""

from __future__ import annotations

import time
from collections.abc import Callable

from events.store.records import ApiKey
from serve_app.access.token_buckets import TokenBuckets
from serve_app.errors import ApiError, retry_after


class Rates:
    """This replica's part of every key's rate and burst.

    Replicas do not talk about it: each grants an equal part, since HAProxy spreads requests evenly.
    A burst is one request at least, so the bursts of all may add up to one less than the replicas
    more than was set.
    """

    def __init__(self, *, replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicas = replicas
        self._buckets = TokenBuckets(clock=clock)

    def take(self, key: ApiKey) -> None:
        """One token. Raises ApiError 429 where there is none."""
        limits = key.limits
        if not limits.rate_per_s:
            return
        wait_s = self._buckets.take(
            key.id,
            rate_per_s=limits.rate_per_s / self._replicas,
            burst=max(1.0, (limits.burst or 1) / self._replicas),
        )
        if wait_s:
            message = f"The key may send {limits.rate_per_s:g} requests a second."
            raise ApiError(429, "rate_exceeded", message, headers=retry_after(wait_s))
