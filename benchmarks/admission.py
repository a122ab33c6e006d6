"""Simulates jobs that arrive one by one: the number of rows that share a call, and the time until a
job joins others.

It uses the engine's own batcher with device calls that only advance a clock, so the figures are the
same on every machine. Jobs arrive by a Poisson process at fractions of the capacity, which is the
rate of a full engine. Each job is a load, a text, 20 steps of 2 rows and a decode. The times of the
calls are estimates in milliseconds for a small SD1.x on 2 cores. A measured denoising call takes
about 9 ms, and 1.4 ms for each row. The simulation uses 5 ms and 1 ms, so its figures can only be
compared with each other.

- rows per call: the rows of a denoising call
- steps missed: the denoising calls that began after a job arrived and before its own first call
- latency: from arrival to end, in multiples of the time of a job alone

usage: python -m benchmarks.admission [--jobs 2000] [--slots 16] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from benchmarks.harness.arrivals import poisson
from benchmarks.harness.graphs import STEPS
from benchmarks.harness.latencies import percentile
from benchmarks.harness.report import Cell, Report
from engine.batch_limits import BatchLimits
from engine.batcher import BatchedRun, Batcher, Execution, Request

LOADS = (0.2, 0.5, 0.8, 0.95)
MAX_ROWS = 32


@dataclass
class Device:
    """A simulated device: its clock in milliseconds, and the rows of every denoising call."""

    now_ms: float = 0.0
    rows: list[int] = field(default_factory=list)
    starts_ms: list[float] = field(default_factory=list)
    """The start time of each denoising call."""


@dataclass(eq=False)
class Call(Request):
    """Device work of a job. A call takes `call_ms`, and additionally `row_ms` for each row."""

    device: Device
    call_ms: ClassVar[float]
    row_ms: ClassVar[float]
    rows: int = 1

    @property
    def key(self) -> Hashable:
        return type(self)

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[None]:
        rows = sum(each.rows for each in requests)
        requests[0].device.now_ms += cls.call_ms + cls.row_ms * rows
        return [None] * len(requests)


class Load(Call):
    is_urgent = True
    call_ms, row_ms = 0.3, 0.0


class Text(Call):
    is_urgent = True
    call_ms, row_ms = 2.0, 0.5


class Decode(Call):
    is_urgent = True
    call_ms, row_ms = 2.0, 5.0


class Denoise(Call):
    call_ms, row_ms = 5.0, 1.0

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[None]:
        device = requests[0].device
        device.rows.append(sum(each.rows for each in requests))
        device.starts_ms.append(device.now_ms)
        return super().run_batch(requests)


@dataclass
class Job:
    arrived_ms: float
    missed: int = 0
    """The number of denoising calls between the arrival of the job and its first call. If the job
    waited for a slot, the number counts from the time at which it got the slot.
    """
    ended_ms: float = math.nan

    def run(self, device: Device, since_ms: float) -> Execution:
        yield [Load(device)]
        yield [Text(device)]
        for step in range(STEPS):
            yield [Denoise(device, rows=2)]
            if step == 0:
                starts_ms = device.starts_ms
                self.missed = len(starts_ms) - 1 - bisect_left(starts_ms, since_ms)
        yield [Decode(device)]
        self.ended_ms = device.now_ms


def simulate(arrivals_ms: Sequence[float], slots: int) -> tuple[Device, list[Job]]:
    """Run all jobs to their ends, at most `slots` jobs at the same time."""
    device, batcher = Device(), Batcher(BatchLimits(MAX_ROWS))
    coming = deque(Job(at) for at in arrivals_ms)
    jobs, running, stepped_ms = list(coming), 0, 0.0

    def leave(_: Exception | None) -> None:
        nonlocal running
        running -= 1

    while coming or not batcher.idle:
        if batcher.idle:
            device.now_ms = max(device.now_ms, coming[0].arrived_ms)
        while coming and coming[0].arrived_ms <= device.now_ms and running < slots:
            job = coming.popleft()
            running += 1
            since_ms = job.arrived_ms if job.arrived_ms > stepped_ms else device.now_ms
            batcher.join(BatchedRun(job.run(device, since_ms), leave))
        stepped_ms = device.now_ms
        batcher.step()
    return device, jobs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = Report("admission")
    alone, _ = simulate([0.0], args.slots)
    full, _ = simulate([0.0] * args.jobs, args.slots)
    per_s = 1000 * args.jobs / full.now_ms
    rows = [_row(load, load * per_s, args, alone.now_ms) for load in LOADS]
    report.table(
        f"Poisson arrivals: a job alone takes {alone.now_ms:.0f} ms; capacity {per_s:.1f} jobs/s",
        {
            "load": "g",
            "rows a call": ".1f",
            "steps missed": ".2f",
            "most": ".0f",
            "latency p50": ".2f",
            "p95": ".2f",
        },
        rows,
    )
    report.write(args.json)


def _row(load: float, rate_per_s: float, args: argparse.Namespace, alone_ms: float) -> list[Cell]:
    arrivals_ms = [1000 * each for each in poisson(rate_per_s, args.jobs / rate_per_s, seed=1)]
    device, jobs = simulate(arrivals_ms, args.slots)
    missed = [job.missed for job in jobs]
    latencies = [(job.ended_ms - job.arrived_ms) / alone_ms for job in jobs]
    return [
        load,
        statistics.mean(device.rows),
        statistics.mean(missed),
        max(missed),
        percentile(latencies, 50),
        percentile(latencies, 95),
    ]


if __name__ == "__main__":
    main()
