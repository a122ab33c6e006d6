from __future__ import annotations

import pytest

from engine.stages import Stage, StageClock


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def clock(time: Time) -> StageClock:
    return StageClock(time)


def answer(clock: StageClock, stage: Stage | None, *, rows: int = 1, call_rows: int = 1) -> None:
    clock.end(stage, rows=rows, call_rows=call_rows)


def test_the_times_of_a_stage_add_up(clock: StageClock, time: Time) -> None:
    for stage, took_s in ((Stage.TEXT, 1.0), (Stage.DENOISE, 2.0), (Stage.DENOISE, 3.0)):
        clock.begin(stage)
        time.now += took_s
        answer(clock, stage)
        time.now += 10.0  # outside any stage
    assert clock.seconds == {Stage.TEXT: 1.0, Stage.DENOISE: 5.0}


def test_requests_that_overlap_count_once(clock: StageClock, time: Time) -> None:
    clock.begin(Stage.TEXT)
    time.now += 1.0
    clock.begin(Stage.TEXT)
    time.now += 1.0
    answer(clock, Stage.TEXT)
    time.now += 1.0
    answer(clock, Stage.TEXT)
    assert clock.seconds == {Stage.TEXT: 3.0}


def test_work_of_no_stage_counts_nowhere(clock: StageClock, time: Time) -> None:
    clock.begin(None)
    time.now += 1.0
    answer(clock, None)
    assert clock.seconds == {}


def test_rows_per_call_are_those_of_the_calls_and_not_of_the_requests(clock: StageClock) -> None:
    """Two rows in a call of 2, and two in one of 6: that is a call, and a third of one."""
    assert clock.rows_per_call is None
    for call_rows in (2, 6):
        clock.begin(Stage.DENOISE)
        answer(clock, Stage.DENOISE, rows=2, call_rows=call_rows)
    assert clock.rows_per_call == pytest.approx(3.0)


def test_only_denoising_calls_are_counted_by_rows(clock: StageClock) -> None:
    clock.begin(Stage.VAE)
    answer(clock, Stage.VAE, rows=4, call_rows=4)
    assert clock.rows_per_call is None
