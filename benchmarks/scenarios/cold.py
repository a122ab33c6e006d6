"""Measures a job for a model that is not in memory and that the engine has never read."""

from __future__ import annotations

import time

from benchmarks.harness.graphs import graph
from benchmarks.harness.models import copy_name
from benchmarks.harness.report import Cell
from benchmarks.scenarios.bench import Bench, median


async def run(bench: Bench) -> None:
    rows: list[list[Cell]] = []
    for name in ("cold", "again"):
        times_s, loads_ms = list[float | None](), list[float | None]()
        for number in range(bench.size.copies):
            began = time.perf_counter()
            end = await bench.caller.run(graph(number, checkpoint=copy_name(number)))
            assert end.is_good, "the copy of a checkpoint did not run"
            times_s.append(time.perf_counter() - began)
            loads_ms.append(end.stage_ms.get("load", 0.0))
        rows.append([name, median(times_s), median(loads_ms)])
    bench.report.table(
        f"One job with a checkpoint of its own: medians of {bench.size.copies}",
        {"model": "", "seconds": ".3f", "of that loading, ms": ".1f"},
        rows,
    )
