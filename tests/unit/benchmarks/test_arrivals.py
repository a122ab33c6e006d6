from __future__ import annotations

from itertools import pairwise
from statistics import mean, pstdev

import pytest

from benchmarks.harness.arrivals import bursts, poisson, uniform


def test_uniform_arrivals_have_equal_gaps() -> None:
    assert uniform(4, 1) == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("rate", [0.5, 20.0])
def test_poisson_arrivals_have_the_rate_and_the_gaps_of_one(rate: float) -> None:
    """Of an exponential distribution the deviation is the mean."""
    times = poisson(rate, 4000 / rate, seed=1)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert mean(gaps) == pytest.approx(1 / rate, rel=0.05)
    assert pstdev(gaps) == pytest.approx(1 / rate, rel=0.1)


def test_bursts_come_together_at_the_same_rate_in_the_mean() -> None:
    times = bursts(20, 400, size=16, seed=1)
    assert len(times) % 16 == 0
    assert all(len(set(times[at : at + 16])) == 1 for at in range(0, len(times), 16))
    assert len(times) / 400 == pytest.approx(20, rel=0.15)


def test_times_are_ascending_and_those_of_their_seed() -> None:
    for times in (poisson(9, 20, seed=3), bursts(9, 20, size=4, seed=3)):
        assert times == sorted(times)
        assert 0 < times[0] <= times[-1] < 20
    assert poisson(9, 20, seed=3) == poisson(9, 20, seed=3) != poisson(9, 20, seed=4)
