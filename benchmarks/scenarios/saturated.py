"""Measures jobs per second when all jobs are sent at once: equal jobs, mixed jobs, and jobs with
different LoRAs.
"""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.harness.graphs import KINDS
from benchmarks.harness.latencies import harmonic_mean
from benchmarks.harness.process import Process
from benchmarks.harness.report import Cell
from benchmarks.scenarios.bench import Bench, Measured, median, ratio

_WITH_LORA = "8 LoRAs"
"""The kind that ComfyUI cannot run, because it does not have the LoRAs that this run creates."""


async def run(bench: Bench) -> None:
    rows: list[list[Cell]] = []
    cpu: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        engine = bench.engine_peer(stack)
        for kind in KINDS:
            await bench.warm_up(kind)
            engine.run(bench.size.jobs, kind=kind)  # loads the models
            row, runs = await _kind(bench, kind, engine)
            rows.append(row)
            cpu[kind] = _cpu_ms_per_job(runs)
    alike = rows[0][1]
    assert isinstance(alike, float)
    for row in rows:
        assert isinstance(row[1], float)
        row.append(ratio(row[1], alike))
    bench.report.table(
        f"{bench.size.jobs} jobs at once: jobs/s, medians of {bench.size.rounds}",
        {
            "jobs": "",
            "service": ".2f",
            "engine alone": ".2f",
            "of it": ".2f",
            "ComfyUI": ".2f",
            "times it": ".2f",
            "rows a call": ".1f",
            "of alike": ".2f",
        },
        rows,
    )
    parts = sorted({part for each in cpu.values() for part in each})
    bench.report.table(
        "CPU of the service for a job: ms",
        {"part": "", **dict.fromkeys(cpu, ".1f")},
        [[part, *(each.get(part) for each in cpu.values())] for part in parts],
    )


async def _kind(bench: Bench, kind: str, engine: Process) -> tuple[list[Cell], list[Measured]]:
    jobs, runs = bench.size.jobs, list[Measured]()
    engine_s, comfyui_s = list[float | None](), list[float | None]()
    for _ in range(bench.size.rounds):
        runs.append(await bench.at_once(kind, jobs))
        engine_s.append(engine.run(jobs, kind=kind))
        comfyui_s.append(None if kind == _WITH_LORA else bench.comfyui_s(kind, jobs))
    service, alone, comfyui = (
        ratio(jobs, median(each))
        for each in ([run.load.time_s for run in runs], engine_s, comfyui_s)
    )
    rows = harmonic_mean(run.load.rows_per_call() for run in runs)
    return [
        kind,
        service,
        alone,
        ratio(service, alone),
        comfyui,
        ratio(service, comfyui),
        rows,
    ], runs


def _cpu_ms_per_job(runs: list[Measured]) -> dict[str, float]:
    jobs = sum(len(each.load.samples) for each in runs)
    parts = {part for each in runs for part in each.cpu_s}
    return {part: 1000 * sum(each.cpu_s.get(part, 0) for each in runs) / jobs for part in parts}
