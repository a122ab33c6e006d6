"""Rate limits of keys and owners, as token buckets."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from events.store.records import ApiKey
from serve_app.refusals import Limited, RateExceeded
from settings.keys import OwnerSettings

_ROUNDING_S = 1e-6
"""Seconds of tolerance. Without it, a rounding error could make Retry-After one second too long."""
_DROPPED_PART = 10
"""If there are too many buckets, one in ten is dropped, because each drop scans all buckets."""
_LONGEST_S = 10**9


class TokenBuckets:
    """Token buckets by name, within this process.

    If there are more than `max_names` buckets, the fullest ones are dropped, because a full bucket
    allows the same requests as a missing one. The emptiest ones stay, so that a caller cannot reset
    a bucket by creating many others.
    """

    def __init__(
        self, *, max_names: int = 10_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_names = max_names
        self._clock = clock
        self._full_at: dict[str, float] = {}
        """The time at which each bucket is full again, by name."""

    def take(self, name: str, *, rate_per_s: float, burst: float) -> int:
        """Take a token and return 0. If there is no token, return the whole seconds to wait."""
        if wait_s := self.wait_s(name, rate_per_s=rate_per_s, burst=burst):
            return wait_s
        self._full_at[name] = self._full_after_one(name, rate_per_s)
        if len(self._full_at) > self._max_names:
            self._drop_fullest()
        return 0

    def wait_s(self, name: str, *, rate_per_s: float, burst: float) -> int:
        """Return the whole seconds until a token is available; 0 if one is available now."""
        wait_s = self._full_after_one(name, rate_per_s) - self._clock() - burst / rate_per_s
        return math.ceil(wait_s - _ROUNDING_S) if wait_s > _ROUNDING_S else 0

    def left(self, name: str, *, rate_per_s: float, burst: float) -> float:
        """Return the number of tokens without taking one."""
        missing_s = self._full_after_one(name, rate_per_s) - self._clock() - 1 / rate_per_s
        return max(0.0, burst - max(0.0, missing_s - _ROUNDING_S) * rate_per_s)

    def _full_after_one(self, name: str, rate_per_s: float) -> float:
        now = self._clock()
        return max(self._full_at.get(name, now), now) + 1 / rate_per_s

    def _drop_fullest(self) -> None:
        count = max(self._max_names // _DROPPED_PART, 1)
        for name in heapq.nsmallest(count, self._full_at, key=self._full_at.__getitem__):
            del self._full_at[name]


@dataclass(frozen=True, slots=True)
class _Limit:
    limited: Limited
    name: str
    rate_per_s: float
    burst: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one limit. It assumes that requests are spread evenly over all replicas."""

    limited: Limited
    quota: int
    """The number of requests that may be sent at once after a pause."""
    window_s: int
    """Seconds in which `quota` requests become available again."""
    left: int
    whole_in_s: int
    """Seconds until the full quota is available."""


class Rates:
    """Limits the requests of each key and each owner to this replica's part of the rate and burst.

    Replicas do not coordinate. Each replica grants an equal part, because HAProxy spreads requests
    evenly. A part of a burst is at least one request, so `n` replicas together exceed a burst by at
    most `n - 1` requests.
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
        """Take one token of the key and one token of its owner.

        Raises RateExceeded if a token is missing. In this case no token is taken.
        """
        limits = self._limits(key)
        for limit in limits:
            if wait_s := self._buckets[limit.limited].wait_s(limit.name, **self._part(limit)):
                raise RateExceeded(limit.limited, limit.rate_per_s, retry_after_s=wait_s)
        for limit in limits:
            self._buckets[limit.limited].take(limit.name, **self._part(limit))

    def standings(self, key: ApiKey) -> list[Standing]:
        """Return the state of each limit of this key and its owner."""
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
