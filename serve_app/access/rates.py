"""How often a key, and an owner with all keys together, may send requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from events.store.records import ApiKey
from serve_app.access.token_buckets import TokenBuckets
from serve_app.refusals import Limited, RateExceeded
from settings.keys import OwnerSettings


@dataclass(frozen=True, slots=True)
class _Limit:
    limited: Limited
    name: str
    rate_per_s: float
    burst: int


class Rates:
    """This replica's part of the rate and the burst of every key, and of every owner.

    Replicas do not coordinate: each grants an equal part, since HAProxy spreads requests evenly.
    Each part of a burst is at least one request. So with `n` replicas the bursts of all together
    exceed the whole burst by at most `n - 1`.
    """

    def __init__(
        self,
        owners: OwnerSettings,
        *,
        replicas: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owners = owners
        self._replicas = replicas
        self._buckets = {limited: TokenBuckets(clock=clock) for limited in Limited}

    def take(self, key: ApiKey) -> None:
        """Take a token of the key and one of its owner. Raises RateExceeded, and takes none."""
        limits = [limit for limit in self._limits(key) if limit.rate_per_s]
        for limit in limits:
            if wait_s := self._buckets[limit.limited].wait_s(limit.name, **self._part(limit)):
                raise RateExceeded(limit.limited, limit.rate_per_s, retry_after_s=wait_s)
        for limit in limits:
            self._buckets[limit.limited].take(limit.name, **self._part(limit))

    def _limits(self, key: ApiKey) -> tuple[_Limit, _Limit]:
        own, owners = key.limits, self._owners
        return (
            _Limit(Limited.KEY, key.id, own.rate_per_s or 0, own.burst or 1),
            _Limit(Limited.OWNER, key.owner, owners.rate_per_s, owners.burst),
        )

    def _part(self, limit: _Limit) -> dict[str, float]:
        return {
            "rate_per_s": limit.rate_per_s / self._replicas,
            "burst": max(1.0, limit.burst / self._replicas),
        }
