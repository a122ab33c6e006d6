from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.batch_limits import BatchLimits
from engine.container_memory import ContainerMemory, container_memory
from engine.diffusion.memory_probes import HostMemoryProbe, memory_probe_of
from engine.engine import Engine

MIB = 2**20
HUGE = 9223372036854771712
"""What control groups of version 1 have where there is no limit."""


class FakeMemoryProbe:
    """The memory of a device on which every row takes the same number of bytes."""

    def __init__(self, *, available: int, row: int) -> None:
        self.available = available
        self.row = row
        self.rows = 0
        self.measurements = 0
        self.questions = 0

    def available_bytes(self) -> int:
        self.questions += 1
        return self.available

    def start(self) -> None:
        self.measurements += 1

    def peak_growth_bytes(self) -> int:
        return self.rows * self.row


def call(limits: BatchLimits, probe: FakeMemoryProbe, rows: int) -> None:
    probe.rows = rows
    with limits.measured("k", rows):
        pass


def test_the_first_call_of_a_kind_has_one_row_and_the_next_as_many_as_fit() -> None:
    probe = FakeMemoryProbe(available=100, row=10)
    limits = BatchLimits(32, probe, share=0.8)
    assert limits.max_rows("k") == 1
    call(limits, probe, 1)
    assert limits.max_rows("k") == 8
    assert limits.max_rows("another kind") == 1


def test_whoever_asks_how_many_fit_is_told_the_setting_until_a_call_was_measured() -> None:
    probe = FakeMemoryProbe(available=100, row=10)
    limits = BatchLimits(32, probe, share=0.8)
    assert limits.fitting_rows("k") == 32
    call(limits, probe, 1)
    assert limits.fitting_rows("k") == 8
    limits.halve("k", 6)
    assert limits.fitting_rows("k") == 3
    assert limits.fitting_rows("another kind") == 32


@pytest.mark.parametrize(("rows", "jobs"), [(1, 4), (8, 4), (9, 4), (12, 6), (32, 16)])
def test_jobs_of_a_call_have_two_rows_each_and_four_take_turns_at_least(
    rows: int, jobs: int
) -> None:
    assert Engine.suggested_concurrency_for(rows) == jobs


def test_a_call_as_large_as_one_before_is_not_measured_again() -> None:
    probe = FakeMemoryProbe(available=10_000, row=10)
    limits = BatchLimits(4, probe)
    for rows in (1, 4, 4, 2, 4):
        call(limits, probe, rows)
    assert probe.measurements == 2


def test_memory_that_others_took_lowers_the_limit_but_not_below_what_was_seen_to_fit() -> None:
    probe = FakeMemoryProbe(available=1000, row=10)
    limits = BatchLimits(32, probe)
    call(limits, probe, 1)
    call(limits, probe, 4)
    probe.available = 60
    assert limits.max_rows("k") == 4
    probe.available = 200
    assert limits.max_rows("k") == 16


def test_the_memory_is_looked_at_only_for_more_rows_than_a_call_has_had() -> None:
    probe = FakeMemoryProbe(available=10_000, row=10)
    limits = BatchLimits(32, probe)
    call(limits, probe, 1)
    call(limits, probe, 4)
    assert limits.max_rows("k", wanted=4) >= 4
    assert probe.questions == 0
    assert limits.max_rows("k", wanted=5) == 32
    assert probe.questions == 1


def test_running_out_of_memory_halves_the_limit() -> None:
    probe = FakeMemoryProbe(available=10_000, row=10)
    limits = BatchLimits(32, probe)
    call(limits, probe, 1)
    limits.halve("k", 16)
    assert limits.max_rows("k") == 8
    limits.halve("k", 1)
    assert limits.max_rows("k") == 1


def test_after_many_full_calls_the_limit_grows_again_by_a_row() -> None:
    probe = FakeMemoryProbe(available=10_000, row=10)
    limits = BatchLimits(4, probe)
    call(limits, probe, 1)
    limits.halve("k", 4)
    for _ in range(300):
        call(limits, probe, 1)  # says nothing about two
    assert limits.max_rows("k") == 2
    for _ in range(100):
        call(limits, probe, 2)
    assert limits.max_rows("k") == 3
    limits.halve("k", 3)
    assert limits.max_rows("k") == 1
    for rows in (1, 2, 3):
        for _ in range(100):
            call(limits, probe, rows)
    assert limits.max_rows("k") == 4


def test_a_limit_grows_where_nothing_is_measured_too() -> None:
    limits = BatchLimits(32)
    limits.halve("k", 4)
    for _ in range(100):
        with limits.measured("k", 2):
            pass
    assert limits.max_rows("k") == 3


def test_the_first_call_of_a_size_is_a_first_one() -> None:
    limits = BatchLimits(32)
    assert limits.is_first("k", 1)
    with limits.measured("k", 1):
        pass
    assert not limits.is_first("k", 1)
    assert limits.is_first("k", 4)


class BrokenProbe(FakeMemoryProbe):
    """A device that fails whatever it is asked, from some moment on."""

    def _fail(self) -> int:
        raise RuntimeError("CUDA error: device-side assert triggered")

    available_bytes = start = peak_growth_bytes = _fail  # type: ignore[assignment]


def test_a_device_that_cannot_be_asked_gets_calls_that_were_seen_to_fit() -> None:
    probe = FakeMemoryProbe(available=1000, row=10)
    limits = BatchLimits(32, probe)
    call(limits, probe, 1)
    call(limits, probe, 4)
    probe.__class__ = BrokenProbe
    assert limits.max_rows("k") == 4
    call(limits, probe, 8)
    assert limits.max_rows("k") == 4


def measured_memory() -> tuple[int, int, int]:
    """Return the available bytes, the growth by 64 MiB, and the growth while they are released."""
    probe = HostMemoryProbe()
    available = probe.available_bytes()
    probe.start()
    taken = np.ones(64 * MIB, np.uint8)
    added = probe.peak_growth_bytes()
    del taken
    probe.start()
    return available, added, probe.peak_growth_bytes()


def test_the_machines_memory_is_measured() -> None:
    """It runs in a process of its own: memory that this one frees meanwhile would count too."""
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        available, added, after = processes.submit(measured_memory).result(timeout=300)
    assert available > 0
    assert 60 * MIB < added < 200 * MIB
    assert after < 16 * MIB


def test_a_cpu_has_a_probe_here() -> None:
    assert isinstance(memory_probe_of(torch.device("cpu")), HostMemoryProbe)


V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
V2 = ("memory.max", "memory.current")


@pytest.mark.parametrize(
    ("names", "limit", "expected"),
    [
        (V2, "4000", ContainerMemory(4000, 7)),
        (V2, "max", None),
        (V1, "4000", ContainerMemory(4000, 7)),
        (V1, str(HUGE), ContainerMemory(HUGE, 7)),
        ((), "", None),
    ],
    ids=["2", "2 without a limit", "1", "1 without a limit", "none"],
)
def test_the_limit_of_a_control_group_is_read(
    tmp_path: Path, names: tuple[str, ...], limit: str, expected: ContainerMemory | None
) -> None:
    for name, content in zip(names, (limit, "7"), strict=False):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    assert container_memory(tmp_path) == expected
