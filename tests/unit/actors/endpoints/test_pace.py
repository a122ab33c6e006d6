import pytest

from actors.endpoints.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_nothing_that_ended_is_no_pace() -> None:
    assert Pace(Clock()).per_s() is None


def test_it_is_that_of_the_last_minute() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(200):
        clock.now_s += 0.5
        pace.note_end()
    assert pace.per_s() == pytest.approx(2.0, rel=0.05)
    clock.now_s += 30
    assert pace.per_s() == pytest.approx(1.0, rel=0.05)
    clock.now_s += 31
    assert pace.per_s() is None


def test_one_that_has_just_begun_counts_by_the_time_since_then() -> None:
    clock = Clock()
    pace = Pace(clock)
    clock.now_s += 10
    for _ in range(50):
        pace.note_end()
    assert pace.per_s() == 5.0
