"""How often a key, and an owner with all keys together, may send requests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from events.store.records import ApiKey
from serve_app.access.token_buckets import TokenBuckets
from serve_app.refusals import Limited, RateExceeded
from settings.keys import OwnerSettings

_LONGEST_S = 10**9


@dataclass(frozen=True, slots=True)
class _Limit:
    limited: Limited
    name: str
    rate_per_s: float
    burst: int


@dataclass(frozen=True, slots=True)
class Standing:
    """How far one limit is used up, as far as this replica knows of the others."""

    limited: Limited
    quota: int
    """How many requests at once, after a pause."""
    window_s: int
    """As many come anew in so many seconds."""
    left: int
    whole_in_s: int
    """When all of them are there again."""


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
        limits = self._limits(key)
        for limit in limits:
            if wait_s := self._buckets[limit.limited].wait_s(limit.name, **self._part(limit)):
                raise RateExceeded(limit.limited, limit.rate_per_s, retry_after_s=wait_s)
        for limit in limits:
            self._buckets[limit.limited].take(limit.name, **self._part(limit))

    def standings(self, key: ApiKey) -> list[Standing]:
        """Of each limit that holds for this key. All replicas are taken to be used alike."""
        return [self._standing(limit) for limit in self._limits(key)]

    def _standing(self, limit: _Limit) -> Standing:
        part = self._part(limit)
        left = self._buckets[limit.limited].left(limit.name, **part)
        return Standing(
            limited=limit.limited,
            quota=limit.burst,
            window_s=_whole_s(limit.burst / limit.rate_per_s),
            left=min(limit.burst, math.floor(left) * self._replicas),
            whole_in_s=_whole_s((part["burst"] - left) / part["rate_per_s"]),
        )

    def _limits(self, key: ApiKey) -> list[_Limit]:
        own, owners = key.limits, self._owners
        limits = (
            _Limit(Limited.KEY, key.id, own.rate_per_s or 0, own.burst or 1),
            _Limit(Limited.OWNER, key.owner, owners.rate_per_s, owners.burst),
        )
        return [limit for limit in limits if limit.rate_per_s]

    def _part(self, limit: _Limit) -> dict[str, float]:
        return {
            "rate_per_s": limit.rate_per_s / self._replicas,
            "burst": max(1.0, limit.burst / self._replicas),
        }


def _whole_s(time_s: float) -> int:
    return math.ceil(min(_LONGEST_S, time_s))
