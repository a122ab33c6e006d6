"""Measures the idle service, and how soon it starts the first step of a job."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from random import Random

import nats
from nats.aio.msg import Msg

from benchmarks.harness.graphs import STEPS
from benchmarks.harness.latencies import percentile
from benchmarks.harness.machine import used
from benchmarks.harness.report import Cell
from benchmarks.scenarios.bench import Bench

_PAUSE_S = (0.2, 0.5)
"""Bounds of the random pauses between jobs. With random pauses, jobs do not always arrive at the
same phase of periodic work.
"""
SETTLE_TIMEOUT_S = 60.0
"""The largest time in seconds until the standby has loaded torch and spare job actors have
started.
"""
_MB = 1e6


async def run(bench: Bench) -> None:
    await _at_rest(bench)
    await _first_steps(bench)


async def _at_rest(bench: Bench) -> None:
    family = bench.family
    await asyncio.to_thread(partial(bench.installation.settle, timeout_s=SETTLE_TIMEOUT_S))
    before, began = family.cpu_s(), time.monotonic()
    await asyncio.sleep(bench.size.idle_s)
    cpu_s, took_s = used(before, family.cpu_s()), time.monotonic() - began
    pss, processes = family.pss_bytes(), family.processes()
    rows: list[list[Cell]] = [
        [part, processes[part], cpu_s.get(part, 0.0) / took_s, pss[part] / _MB]
        for part in sorted(pss, key=lambda part: -pss[part])
    ]
    cores = sum(cpu_s.values()) / took_s
    rows.append(["all", sum(processes.values()), cores, sum(pss.values()) / _MB])
    bench.report.table(
        f"The service at rest, over {bench.size.idle_s:g} s",
        {"part": "", "processes": ".0f", "cores": ".3f", "memory (PSS) MB": ".0f"},
        rows,
    )


async def _first_steps(bench: Bench) -> None:
    """Measure the seconds from just before the submission to the start of the first step.

    The service reports a step after its end, so the mean duration of a step is subtracted.
    """
    heard: dict[str, float] = {}
    random = Random(1)
    client = await nats.connect(bench.installation.nats_url)
    accepted_ms, begun_ms, done_ms = list[float](), list[float](), list[float]()

    async def note(message: Msg) -> None:
        heard.setdefault(message.subject.rsplit(".", 1)[1], time.perf_counter())

    try:
        await client.subscribe("progress.*", cb=note)
        await client.flush()
        for graph in bench.seeds.graphs("alike", bench.size.first_steps):
            await asyncio.sleep(random.uniform(*_PAUSE_S))
            sent = time.perf_counter()
            job_id = await bench.caller.submit(graph)
            accepted_ms.append(1000 * (time.perf_counter() - sent))
            end = await bench.caller.end(job_id)
            done_ms.append(1000 * (heard[job_id] - sent))
            begun_ms.append(done_ms[-1] - end.stage_ms["denoise"] / STEPS)
    finally:
        await client.close()
    bench.report.table(
        f"A warm idle worker, {bench.size.first_steps} jobs: ms after a job was sent",
        {"until": "", "p50": ".1f", "p95": ".1f"},
        [
            [name, percentile(values, 50), percentile(values, 95)]
            for name, values in (
                ("it was accepted", accepted_ms),
                ("its first step began", begun_ms),
                ("its first step was done", done_ms),
            )
        ],
    )
