"""Measures latency and goodput at loads of 0.2 to 1.2 of the service's capacity.

Each job is sent at its time, whether earlier jobs have ended or not, and its latency counts from
this time. Goodput is the number of jobs per second that complete within a bound. The bound is a
multiple of the time of one job alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.harness.arrivals import bursts, poisson, uniform
from benchmarks.harness.report import Cell
from benchmarks.scenarios.bench import Bench, Measured

FRACTIONS = (0.2, 0.4, 0.5, 0.6, 0.8, 0.95, 1.2)
OTHERS_AT = 0.8
"""The load, as a fraction of the capacity, for arrivals other than a Poisson process."""
BURST = 8
BOUND = 5.0
"""The bound of goodput, as a multiple of the time of one job alone."""
_STAGES = ("queue", "text", "denoise", "vae", "store")


async def run(bench: Bench) -> None:
    capacity_per_s, alone_s = await bench.rate_per_s(), await bench.alone_s()
    rows: list[list[Cell]] = []
    stages: list[list[Cell]] = []
    for name, part, arrivals in _loads(capacity_per_s, bench.size.load_s):
        bench.installation.settle()
        measured = await bench.offer("alike", arrivals, time_s=bench.size.load_s)
        rows.append([name, part * capacity_per_s, *_row(measured, BOUND * alone_s)])
        told = measured.load.stage_ms()
        stages.append([name, *(told[stage] for stage in _STAGES)])
    bench.report.table(
        f"Offered for {bench.size.load_s:g} s, where {capacity_per_s:.2f} jobs/s are the capacity;"
        f" good within {BOUND:g} × {alone_s:.3f} s",
        {
            "load": "",
            "offered/s": ".2f",
            "p50 s": ".3f",
            "p95 s": ".3f",
            "p99 s": ".3f",
            "goodput/s": ".2f",
            "good": ".0%",
            "failed": ".0f",
            "rows a call": ".1f",
            "CPU ms a job": ".0f",
            "sent late p99 ms": ".1f",
        },
        rows,
    )
    bench.report.table(
        "Their time by Server-Timing: medians in ms",
        {"load": "", **dict.fromkeys(_STAGES, ".1f")},
        stages,
    )


def _loads(capacity_per_s: float, time_s: float) -> Sequence[tuple[str, float, list[float]]]:
    """The name, the fraction of the capacity, and the arrival times of each load."""
    seeded = [
        (f"Poisson {part:g}", part, poisson(part * capacity_per_s, time_s, seed=number))
        for number, part in enumerate(FRACTIONS)
    ]
    rate_per_s = OTHERS_AT * capacity_per_s
    return [
        *seeded,
        (f"uniform {OTHERS_AT:g}", OTHERS_AT, uniform(rate_per_s, time_s)),
        (f"bursts {OTHERS_AT:g}", OTHERS_AT, bursts(rate_per_s, time_s, size=BURST, seed=1)),
    ]


def _row(measured: Measured, bound_s: float) -> list[Cell]:
    load = measured.load
    return [
        *(load.latency_s(percent) for percent in (50, 95, 99)),
        load.goodput_per_s(bound_s),
        load.good_share(bound_s),
        load.failed,
        load.rows_per_call(),
        measured.cpu_ms_per_job(),
        1000 * load.late_s(99),
    ]
