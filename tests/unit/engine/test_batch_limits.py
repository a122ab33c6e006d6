from __future__ import annotations

import subprocess
import sys

import torch

from engine.batch_limits import RowLimits
from engine.diffusion.memory_probe import HostGauge, gauge_of

MIB = 2**20
MEASURE = """
import numpy as np
from engine.diffusion.memory_probe import HostGauge
gauge = HostGauge()
print(gauge.available_bytes())
gauge.start()
taken = np.ones(64 * 2**20, np.uint8)
print(gauge.grown_bytes())
del taken
gauge.start()
print(gauge.grown_bytes())
"""


class FakeGauge:
    """A device on which every row takes as much."""

    def __init__(self, *, available: int, row: int) -> None:
        self.available = available
        self.row = row
        self.rows = 0
        self.measurements = 0

    def available_bytes(self) -> int:
        return self.available

    def start(self) -> None:
        self.measurements += 1

    def grown_bytes(self) -> int:
        return self.rows * self.row


def call(limits: RowLimits, gauge: FakeGauge, rows: int) -> None:
    gauge.rows = rows
    with limits.measured("k", rows):
        pass


def test_without_a_gauge_only_the_setting_counts() -> None:
    assert RowLimits(32).rows_of("k") == 32


def test_the_first_call_of_a_kind_has_one_row_and_the_next_as_many_as_fit() -> None:
    gauge = FakeGauge(available=100, row=10)
    limits = RowLimits(32, gauge, share=0.8)
    assert limits.rows_of("k") == 1
    call(limits, gauge, 1)
    assert limits.rows_of("k") == 8
    assert limits.rows_of("another kind") == 1


def test_a_call_as_large_as_one_before_is_not_measured_again() -> None:
    gauge = FakeGauge(available=10_000, row=10)
    limits = RowLimits(4, gauge)
    for rows in (1, 4, 4, 2, 4):
        call(limits, gauge, rows)
    assert gauge.measurements == 2


def test_memory_that_others_took_lowers_the_limit_but_not_below_what_was_seen_to_fit() -> None:
    gauge = FakeGauge(available=1000, row=10)
    limits = RowLimits(32, gauge)
    call(limits, gauge, 1)
    call(limits, gauge, 4)
    gauge.available = 60
    assert limits.rows_of("k") == 4
    gauge.available = 200
    assert limits.rows_of("k") == 16


def test_running_out_of_memory_halves_the_limit_for_good() -> None:
    gauge = FakeGauge(available=10_000, row=10)
    limits = RowLimits(32, gauge)
    call(limits, gauge, 1)
    limits.cut("k", 16)
    assert limits.rows_of("k") == 8
    limits.cut("k", 1)
    assert limits.rows_of("k") == 1


def test_the_machines_memory_is_measured() -> None:
    """In a process of its own: what this one gives back meanwhile would count too."""
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE], check=True, capture_output=True, text=True, timeout=300
    )
    available, taken, after = map(int, measured.stdout.split())
    assert available > 0
    assert 60 * MIB < taken < 200 * MIB
    assert after < 16 * MIB


def test_a_cpu_has_a_gauge_here() -> None:
    assert isinstance(gauge_of(torch.device("cpu")), HostGauge)
