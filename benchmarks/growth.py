"""Measures what a job costs as stored jobs, the queue, the load and the number of workers grow.

HTTP, router, projection and dispatcher run without Ray, each in its own process. The workers are
simulated and end a job after 50 ms. In each state the same jobs are sent over HTTP. The CPU time of
each part, minus the CPU time of the idle part, is divided by the number of jobs. If the cost does
not grow, the rows of a table are equal.

nats-server syncs its files every two minutes here. With `--sync always`, as in `darkroom up`, it
would take hours to create the states. The states are:

- stored: a number of ended jobs, which router and projection have read
- queued: a number of waiting jobs, while no worker has room
- rate: a number of jobs per second
- workers: a number of workers of one dispatcher

usage: python -m benchmarks.growth [--stored 1000,100000] [--queued 1000,100000] [--rates 1,10,100]
           [--workers 64,1000] [--time-s 20] [--sync 2m] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness.arrivals import uniform
from benchmarks.harness.graphs import graph
from benchmarks.harness.latencies import Load
from benchmarks.harness.load import End, offer
from benchmarks.harness.machine import used
from benchmarks.harness.many_jobs import Mould, publish
from benchmarks.harness.parts import Parts, running_parts
from benchmarks.harness.report import Cell, Report
from events.ids import new_id
from events.log import utc_now
from events.store.endpoints import Endpoints
from events.store.read_model import ReadModel

JOB_S = 0.05
RATE_PER_S = 10.0
WORKERS = 64
IDLE_S = 5.0
QUIET_TIMEOUT_S = 6 * 3600.0
ANY_QUEUE = 2**40
PARTS = ("api", "router", "projection", "dispatcher", "nats-server")
_MB = 1e6


def main() -> None:
    args = _arguments()
    report = Report("growth")
    asyncio.run(Growth(report, args.time_s, args.sync).run(args))
    report.write(args.json)


class Growth:
    def __init__(self, report: Report, time_s: float, sync: str) -> None:
        self._report = report
        self._time_s = time_s
        self._sync = sync
        self._costs: list[list[Cell]] = []
        self._memory: list[list[Cell]] = []
        self._cores: list[list[Cell]] = []
        self._followed: list[list[Cell]] = []

    async def run(self, args: argparse.Namespace) -> None:
        """Measure all states. The results are printed also if the run is interrupted."""
        try:
            if args.stored:
                await self._stored(args.stored)
            if args.queued:
                await self._queued(args.queued)
            for rate in args.rates:
                await self._with_workers(f"{rate:,} jobs/s", WORKERS, rate_per_s=rate)
            for count in args.workers:
                await self._with_workers(f"{count:,} workers", count)
        finally:
            self._tell()

    async def _with_workers(self, name: str, count: int, *, rate_per_s: float = RATE_PER_S) -> None:
        async with running_parts(_workers(count), job_s=JOB_S, sync=self._sync) as parts:
            await self._measure(name, parts, rate_per_s=rate_per_s)

    async def _stored(self, marks: Sequence[int]) -> None:
        async with running_parts(_workers(WORKERS), job_s=JOB_S, sync=self._sync) as parts:
            await self._measure("nothing stored", parts)
            await self._grow("stored", parts, marks, is_open=False)

    async def _queued(self, marks: Sequence[int]) -> None:
        async with running_parts(_workers(1), job_s=None, sync=self._sync) as parts:
            endpoints = Endpoints(parts.database)
            default = await endpoints.get("default")
            assert default is not None
            await endpoints.put(replace(default, max_queued=ANY_QUEUE))
            await self._measure("nothing queued", parts)
            await self._grow("queued", parts, marks, is_open=True)

    async def _grow(self, state: str, parts: Parts, marks: Sequence[int], *, is_open: bool) -> None:
        """Store jobs until each of the numbers in `marks` is reached, and measure at each
        number.
        """
        there = 0
        for mark in marks:
            before = parts.cpu_s()
            await _cast(parts, mark - there, is_open=is_open)
            cpu_s = used(before, parts.cpu_s())
            costs = [1000 * cpu_s[part] / (mark - there) for part in ("router", "projection")]
            row: list[Cell] = [f"{there:,} to {mark:,} {state}", *costs]
            self._followed.append(row)
            there = mark
            await self._measure(f"{mark:,} {state}", parts)

    async def _measure(self, name: str, parts: Parts, *, rate_per_s: float = RATE_PER_S) -> None:
        before, began = parts.cpu_s(), time.monotonic()
        await asyncio.sleep(IDLE_S)
        idle_s = time.monotonic() - began
        cores = {part: cpu_s / idle_s for part, cpu_s in used(before, parts.cpu_s()).items()}
        before, began = parts.cpu_s(), time.monotonic()
        load = await self._offer(parts, rate_per_s)
        await parts.settle(timeout_s=QUIET_TIMEOUT_S)
        took_s, cpu_s = time.monotonic() - began, used(before, parts.cpu_s())
        jobs = len(load.samples)
        costs = {part: 1000 * max(0.0, cpu_s[part] - cores[part] * took_s) / jobs for part in PARTS}
        latencies = [1000 * load.latency_s(percent) for percent in (50, 99)]
        still_open = len(await ReadModel(parts.database).open_job_ids())
        self._costs.append([name, jobs, *latencies, *_by_part(costs), load.failed, still_open])
        memory_mb = {part: size / _MB for part, size in parts.pss_bytes().items()}
        self._memory.append([name, *_by_part(memory_mb)])
        self._cores.append([name, *_by_part(cores)])

    async def _offer(self, parts: Parts, rate_per_s: float) -> Load:
        caller = parts.caller()

        async def run(number: int) -> End:
            try:
                await caller.submit(graph(number))
            except (AssertionError, OSError, asyncio.IncompleteReadError):
                return End(is_good=False)
            return End()

        arrivals = uniform(rate_per_s, self._time_s)
        load = await offer(arrivals, run, time_s=self._time_s)
        caller.close()
        return load

    def _tell(self) -> None:
        self._report.table(
            f"CPU of a job, offered for {self._time_s:g} s: ms, less what there is at rest",
            {
                "state": "",
                "jobs": ",.0f",
                "202 p50 ms": ".1f",
                "p99": ".1f",
                **dict.fromkeys(PARTS, ".2f"),
                "all": ".2f",
                "refused": ".0f",
                "still open": ",.0f",
            },
            self._costs,
        )
        for title, form, rows in (
            ("Memory (PSS) in MB", ".0f", self._memory),
            ("Cores at rest", ".3f", self._cores),
        ):
            columns = {"state": "", **dict.fromkeys(PARTS, form), "all": form}
            self._report.table(title, columns, rows)
        self._report.table(
            "CPU of a job that was put into the log, to follow it: ms",
            {"jobs": "", "router": ".2f", "projection": ".2f"},
            self._followed,
        )


def _by_part(values: Mapping[str, float]) -> list[float]:
    """The figures in the order of the columns, and their sum."""
    return [*(values[part] for part in PARTS), sum(values.values())]


async def _cast(parts: Parts, count: int, *, is_open: bool) -> None:
    """Write jobs to the log, and wait until router and projection have read them."""
    mould = Mould(utc_now(), is_open=is_open)
    first = await publish(parts.nats_url, mould, [new_id() for _ in range(count)])
    last, read_model = first - 1 + count * mould.events, ReadModel(parts.database)
    while True:
        await parts.settle(timeout_s=QUIET_TIMEOUT_S)
        if await read_model.offset() >= last:
            return


def _workers(count: int) -> dict[str, str]:
    return {
        "DARKROOM_MIN_WORKERS": str(count),
        "DARKROOM_MAX_WORKERS": str(count),
        "DARKROOM_JOBS_PER_WORKER": "4",
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth")
    parser.add_argument("--stored", type=_numbers, default=[1_000, 100_000])
    parser.add_argument("--queued", type=_numbers, default=[1_000, 100_000])
    parser.add_argument("--rates", type=_numbers, default=[1, 10, 100])
    parser.add_argument("--workers", type=_numbers, default=[64, 1_000])
    parser.add_argument("--time-s", type=float, default=20.0)
    parser.add_argument("--sync", default="2m")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return sorted(map(int, filter(None, text.split(","))))


if __name__ == "__main__":
    main()
