from __future__ import annotations

import pytest

from benchmarks.soak import MAY_GROW, growth


def grown(values: list[float]) -> float:
    return growth([{"files": value} for value in values])["files"]


def test_what_fills_at_first_and_then_stays_does_not_grow() -> None:
    assert grown([1, 50, 100, *[100] * 6]) == 0


def test_what_grows_for_ever_is_seen() -> None:
    assert grown([float(100 + 10 * number) for number in range(30)]) > MAY_GROW


def test_one_reading_that_is_off_says_nothing() -> None:
    assert grown([100.0] * 8 + [900.0]) == 0


@pytest.mark.parametrize("values", [[7.0], [7.0, 7.0], [0.0, 0.0, 0.0]])
def test_few_readings_and_nothing_are_flat(values: list[float]) -> None:
    assert grown(values) == 0
