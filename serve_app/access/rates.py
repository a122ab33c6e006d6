"""How often a key may send requests."""

from __future__ import annotations

import time
from collections.abc import Callable

from events.store.records import ApiKey
from serve_app.access.token_buckets import TokenBuckets
from serve_app.refusals import RateExceeded


class Rates:
    """This replica's part of the rate and the burst of every key.

    Replicas do not coordinate: each grants an equal part, since HAProxy spreads requests evenly.
    Each part of a burst is at least one request. So with `n` replicas the bursts of all together
    exceed the key's own burst by at most `n - 1`.
    """

    def __init__(self, *, replicas: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicas = replicas
        self._buckets = TokenBuckets(clock=clock)

    def take(self, key: ApiKey) -> None:
        """Take one token. Raises RateExceeded where there is none."""
        limits = key.limits
        if not limits.rate_per_s:
            return
        wait_s = self._buckets.take(
            key.id,
            rate_per_s=limits.rate_per_s / self._replicas,
            burst=max(1.0, (limits.burst or 1) / self._replicas),
        )
        if wait_s:
            raise RateExceeded(limits.rate_per_s, retry_after_s=wait_s)
