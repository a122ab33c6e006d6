"""Arrival times of jobs: seconds from the start of an open-loop load, ascending.

Callers send at these times, however slow the service is, and latency counts from these times. So a
delay of the service increases the latency of every job that arrives during the delay. Callers that
wait for an answer before the next job would measure the delay only once (coordinated omission).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from random import Random


def uniform(rate_per_s: float, time_s: float) -> list[float]:
    """Equal gaps."""
    return [number / rate_per_s for number in range(round(rate_per_s * time_s))]


def poisson(rate_per_s: float, time_s: float, *, seed: int) -> list[float]:
    """Exponentially distributed gaps, as with independent callers."""
    return list(_until(time_s, rate_per_s, Random(seed)))


def bursts(rate_per_s: float, time_s: float, *, size: int, seed: int) -> list[float]:
    """Bursts of `size` jobs at the times of a Poisson process. The mean rate of jobs is
    `rate_per_s`.
    """
    starts = _until(time_s, rate_per_s / size, Random(seed))
    return [start for start in starts for _ in repeat(None, size)]


def _until(time_s: float, rate_per_s: float, random: Random) -> Iterator[float]:
    now = random.expovariate(rate_per_s)
    while now < time_s:
        yield now
        now += random.expovariate(rate_per_s)
