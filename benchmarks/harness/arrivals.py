"""When jobs are meant to arrive: seconds from the start of an open-loop load, ascending.

A caller who does not wait for the answers to others sends at these times, however slow the service
is. So latency is counted from here: what a service that stalls delays is seen in every job that was
meant to come meanwhile, and not in one alone (coordinated omission).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from random import Random


def uniform(rate_per_s: float, time_s: float) -> list[float]:
    """Equal gaps."""
    return [number / rate_per_s for number in range(round(rate_per_s * time_s))]


def poisson(rate_per_s: float, time_s: float, *, seed: int) -> list[float]:
    """Exponential gaps: callers who do not know of each other."""
    return list(_until(time_s, rate_per_s, Random(seed)))


def bursts(rate_per_s: float, time_s: float, *, size: int, seed: int) -> list[float]:
    """`size` jobs at once, at the times of a Poisson process: the same rate in the mean."""
    starts = _until(time_s, rate_per_s / size, Random(seed))
    return [start for start in starts for _ in repeat(None, size)]


def _until(time_s: float, rate_per_s: float, random: Random) -> Iterator[float]:
    now = random.expovariate(rate_per_s)
    while now < time_s:
        yield now
        now += random.expovariate(rate_per_s)
