from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.latencies import (
    Load,
    Sample,
    harmonic_mean,
    parse_server_timing,
    percentile,
)
from events.job_cost import Timing
from events.types import Completed, Started
from serve_app.routes.server_timing import server_timing
from tests.support.events import folded, submitted


def load(*latencies_s: float, time_s: float = 10.0) -> Load:
    """Jobs that are meant to come each second, and each sent half a second late."""
    samples = [
        Sample(float(number), number + 0.5, number + latency_s)
        for number, latency_s in enumerate(latencies_s)
    ]
    return Load(samples, time_s)


def test_a_latency_counts_from_the_time_at_which_the_job_was_meant_to_be_sent() -> None:
    assert Sample(intended_s=2.0, sent_s=7.0, ended_s=8.0).latency_s == 6.0
    assert load(1.0).late_s(50) == 0.5


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, 5), (90, 9), (95, 10), (100, 10), (0, 1), (1, 1)]
)
def test_a_percentile_is_a_value_that_did_occur(percent: float, expected: float) -> None:
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0, 100))
def test_as_many_values_as_it_says_are_not_above_a_percentile(
    values: list[float], percent: float
) -> None:
    found = percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9


def test_nothing_has_no_percentile() -> None:
    assert math.isnan(percentile([], 50))
    assert math.isnan(harmonic_mean([]))


def test_goodput_counts_what_came_in_time_and_came_to_a_result() -> None:
    taken = load(1.0, 2.0, 3.0, 9.0)
    failed = Sample(4.0, 4.0, 4.1, is_good=False)
    both = Load([*taken.samples, failed], time_s=2.0)
    assert both.goodput_per_s(3.0) == 1.5
    assert both.good_share(3.0) == pytest.approx(3 / 5)
    assert both.failed == 1


def test_the_rows_of_calls_are_the_harmonic_mean_of_those_that_jobs_saw() -> None:
    """One job of 2 rows in a call of 2, and three of 2 rows each in one of 6: two calls."""
    assert harmonic_mean([2, 6, 6, 6]) == pytest.approx(8 / 2)


def test_the_header_of_the_service_is_understood() -> None:
    stages = {"text": 0.02, "denoise": 0.5, "store": 0.03}
    timing = Timing(stage_s=stages, rows_per_call=6.4)
    job = folded([submitted(), Started(attempt=1, actor="a"), Completed(images=0, timing=timing)])
    stage_ms, rows = parse_server_timing(server_timing(job)["Server-Timing"])
    assert stage_ms == {
        "queue": 1000.0,
        "text": 20.0,
        "denoise": 500.0,
        "store": 30.0,
        "total": 2000.0,
    }
    assert rows == 6.4
    assert parse_server_timing("") == ({}, None)


def test_stages_are_medians_of_the_jobs_that_told_them() -> None:
    samples = [Sample(0, 0, 1, stage_ms={"denoise": each}) for each in (1.0, 2.0, 9.0)]
    stage_ms = Load([*samples, Sample(0, 0, 1)], 1.0).stage_ms()
    assert (stage_ms["denoise"], stage_ms["queue"]) == (2.0, 0.0)
