"""Checks whether any resource grows in half an hour at 0.7 of the service's capacity.

Jobs arrive by a Poisson process. The service's memory (PSS), open files, threads, processes and
NATS consumers are read periodically. A figure counts as flat if its median in the last third of the
time is at most a tenth above its median in the second third. In the first third, caches and pools
fill.

usage: python -m benchmarks.soak [--time-s 1800] [--part 0.7] [--json FILE]
           [DARKROOM_NAME=value ...]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import nats

from benchmarks.harness.arrivals import poisson
from benchmarks.harness.installation import installation
from benchmarks.harness.report import Cell, Report
from benchmarks.scenarios.bench import Bench, Measured, Size
from events.bus.streams import STREAMS

READINGS = 60
MAY_GROW = 0.1
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Reading:
    """The resources of all processes of the service at one time."""

    memory_of: dict[str, float]
    """The memory in MB by part."""
    memory_mb: float
    files: int
    threads: int
    processes: int
    consumers: int

    def totals(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name != "memory_of"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--time-s", type=float, default=1800.0)
    parser.add_argument("--part", type=float, default=0.7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    report = Report("soak")
    settings = dict(each.split("=", 1) for each in args.settings)
    with installation(settings) as service:
        bench = Bench(service, report, Size())
        is_flat = asyncio.run(_run(bench, args.time_s, args.part))
    report.write(args.json)
    if not is_flat:
        raise SystemExit("Something grows; see the table.")


async def _run(bench: Bench, time_s: float, part: float) -> bool:
    await bench.first_job()
    rate_per_s = part * await bench.rate_per_s()
    reading = asyncio.create_task(_read(bench, time_s))
    arrivals = poisson(rate_per_s, time_s, seed=1)
    measured = await bench.offer("alike", arrivals, time_s=time_s)
    readings = await reading
    bench.caller.close()
    _tell_load(bench.report, measured, rate_per_s)
    grown = growth([each.totals() for each in readings])
    last = readings[-1].totals()
    rows: list[list[Cell]] = [
        [name, last[name], share, "flat" if share <= MAY_GROW else "GROWS"]
        for name, share in grown.items()
    ]
    bench.report.table(
        f"After {time_s:g} s, {len(readings)} readings: the last third against the second",
        {"of the service": "", "at the end": ".0f", "grown by": "+.1%", "so it": ""},
        rows,
    )
    _tell_memory(bench.report, readings)
    return all(share <= MAY_GROW for share in grown.values()) and not measured.load.failed


def growth(readings: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the growth of the median of each figure from the second third to the last."""
    third = max(1, len(readings) // 3)
    grown = {}
    for name in readings[0]:
        values = [each[name] for each in readings]
        before = statistics.median(values[-2 * third : -third] or values[:1])
        grown[name] = statistics.median(values[-third:]) / before - 1 if before else 0.0
    return grown


def _tell_load(report: Report, measured: Measured, rate_per_s: float) -> None:
    load = measured.load
    report.table(
        "The load",
        {
            "jobs/s": ".2f",
            "jobs": ",.0f",
            "p50 s": ".3f",
            "p99 s": ".3f",
            "failed": ".0f",
            "CPU ms a job": ".0f",
        },
        [
            [
                rate_per_s,
                len(load.samples),
                load.latency_s(50),
                load.latency_s(99),
                load.failed,
                measured.cpu_ms_per_job(),
            ]
        ],
    )


def _tell_memory(report: Report, readings: Sequence[Reading]) -> None:
    """Report the memory of each part at the end of each third, to find the part that grows."""
    ends = [readings[len(readings) * third // 3 - 1].memory_of for third in (1, 2, 3)]
    report.table(
        "Memory (PSS) in MB at the end of each third",
        {"part": "", "first": ".0f", "second": ".0f", "last": ".0f"},
        [[part, *(each.get(part, 0.0) for each in ends)] for part in sorted(ends[-1])],
    )


async def _read(bench: Bench, time_s: float) -> list[Reading]:
    client, readings = await nats.connect(bench.installation.nats_url), list[Reading]()
    began = time.monotonic()
    try:
        for number in range(1, READINGS + 1):
            await asyncio.sleep(began + number * time_s / READINGS - time.monotonic())
            family, js = bench.family, client.jetstream()
            infos = [await js.stream_info(stream.name) for stream in STREAMS]
            memory = await asyncio.to_thread(family.pss_bytes)
            readings.append(
                Reading(
                    {part: size / _MB for part, size in memory.items()},
                    sum(memory.values()) / _MB,
                    sum(family.files().values()),
                    sum(family.threads().values()),
                    sum(family.processes().values()),
                    sum(info.state.consumer_count for info in infos),
                )
            )
    finally:
        await client.close()
    return readings


if __name__ == "__main__":
    main()
