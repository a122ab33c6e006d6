"""Compares a ComfyUI server that is called directly with the same server behind an endpoint.

The server runs already at COMFYUI_URL, and has the checkpoint of BENCHMARK_CHECKPOINT. First single
jobs are run, directly and through Darkroom in turns. Then many jobs are sent at once, also in
turns. With `--soak`, the install in COMFYUI_DIR runs that many jobs in a row on an endpoint whose
server is restarted after every 100 jobs, and the memory of the service is measured on the way.

usage: COMFYUI_URL=http://127.0.0.1:8188 BENCHMARK_CHECKPOINT=/models/checkpoints/sd15.safetensors
           python -m benchmarks.comfyui [--jobs 20] [--queued 50] [--soak 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from darkroom_client import AsyncDarkroom, Options

from benchmarks.harness.graphs import Graph, graph
from benchmarks.harness.installation import Installation, installation
from benchmarks.harness.report import Cell, Report
from benchmarks.peers.comfyui import URL, run_all

MOST_LONGER_S = 0.15
"""The largest time in seconds that Darkroom may add to the median job."""
LEAST_RATE = 0.95
"""The smallest throughput of Darkroom, as a fraction of the server's own."""
ROUNDS = 2
STEPS = 20
"""The number of steps in ComfyUI's default graph."""
MEASURED_EVERY = 100
PARTS = ("HTTP replicas", "roles", "job actors", "nats-server", "Ray, the rest")
"""The parts whose memory is reported. The last one has the engine actor and its server."""
_MB = 1e6


def job(seed: int, steps: int = STEPS) -> Graph:
    return graph(seed, steps=steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20, help="single jobs on each side")
    parser.add_argument("--queued", type=int, default=50, help="jobs that are sent at once")
    parser.add_argument("--soak", type=int, default=0, help="jobs in a row; needs COMFYUI_DIR")
    parser.add_argument("--json", type=Path, help="the file of the report")
    arguments = parser.parse_args()
    if URL is None:
        parser.error("set COMFYUI_URL")
    report = Report("comfyui")
    with installation({}) as installed:
        create(installed, "attached", comfyui_url=URL)
        # Both sides load the checkpoint before the first measured job.
        run_all(URL, [job(1)])
        asyncio.run(run_through(installed, "attached", [job(2)]))
        alone(report, installed, URL, arguments.jobs)
        queued(report, installed, URL, arguments.queued)
        if arguments.soak:
            soak(report, installed, arguments.soak)
    report.write(arguments.json)


def create(installed: Installation, id: str, **members: str | int | float) -> None:
    service = installed.service
    headers = {"Authorization": f"Bearer {service.admin_key}"}
    body = {"id": id, "engine": "comfyui", "min_workers": 1, "gpus": 0, "cpus": 0.1, **members}
    httpx.post(f"{service.url}/v1/endpoints", json=body, headers=headers).raise_for_status()


async def run_through(installed: Installation, endpoint: str, graphs: Sequence[Graph]) -> float:
    """Submit all graphs at once. Return the time in seconds until all have completed."""
    async with AsyncDarkroom(installed.service.url, installed.service.admin_key) as darkroom:

        async def run(each: Graph) -> None:
            sent = await darkroom.workflow(each, options=Options(endpoint=endpoint))
            (await darkroom.wait(sent)).require_completed()

        began = time.perf_counter()
        await asyncio.gather(*map(run, graphs))
        return time.perf_counter() - began


def alone(report: Report, installed: Installation, url: str, jobs: int) -> None:
    directly, through = [], []
    for seed in range(100, 100 + jobs):
        directly.append(run_all(url, [job(seed)]))
        through.append(asyncio.run(run_through(installed, "attached", [job(seed + 10_000)])))
    longer_s = statistics.median(through) - statistics.median(directly)
    rows: list[list[Cell]] = [
        [name, statistics.median(times), min(times), max(times)]
        for name, times in (("directly", directly), ("through Darkroom", through))
    ]
    columns = {"one job at a time": "s", "median s": ".3f", "least": ".3f", "most": ".3f"}
    report.table(
        f"{longer_s * 1000:.0f} ms longer; {MOST_LONGER_S * 1000:.0f} allowed", columns, rows
    )


def queued(report: Report, installed: Installation, url: str, jobs: int) -> None:
    directly, through = [], []
    for turn in range(ROUNDS):
        seeds = range(100_000 * (turn + 1), 100_000 * (turn + 1) + 2 * jobs)
        graphs = [job(seed) for seed in seeds]
        directly.append(jobs / run_all(url, graphs[:jobs]))
        took_s = asyncio.run(run_through(installed, "attached", graphs[jobs:]))
        through.append(jobs / took_s)
    ratio = statistics.mean(through) / statistics.mean(directly)
    rows: list[list[Cell]] = [
        [name, statistics.mean(rates), min(rates), max(rates)]
        for name, rates in (("directly", directly), ("through Darkroom", through))
    ]
    columns = {f"{jobs} jobs at once": "s", "jobs per s": ".3f", "least": ".3f", "most": ".3f"}
    report.table(f"ratio {ratio:.3f}; at least {LEAST_RATE} required", columns, rows)


def soak(report: Report, installed: Installation, jobs: int) -> None:
    """Run jobs in a row, and report the memory of the service after each 100 of them."""
    create(installed, "own", comfyui_dir=os.environ["COMFYUI_DIR"], comfyui_max_jobs=MEASURED_EVERY)
    rows: list[list[Cell]] = []
    for first in range(0, jobs, MEASURED_EVERY):
        count = min(MEASURED_EVERY, jobs - first)
        graphs = [job(1_000_000 + first + seed, steps=2) for seed in range(count)]
        took_s = asyncio.run(run_through(installed, "own", graphs))
        memory = installed.family.pss_bytes()
        rows.append([first + count, count / took_s, *(memory.get(name, 0) / _MB for name in PARTS)])
    columns = {"jobs": "d", "per s": ".2f"} | {f"{name} MB": ".0f" for name in PARTS}
    report.table("Jobs in a row on an own server, all completed", columns, rows)


if __name__ == "__main__":
    main()
