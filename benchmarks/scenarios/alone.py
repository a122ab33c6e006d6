"""Measures one job alone on the service and on the peers."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.harness.latencies import percentile
from benchmarks.scenarios.bench import Bench, median, ratio

_STAGES = ("queue", "text", "denoise", "vae", "store", "total")


async def run(bench: Bench) -> None:
    loads = []
    times: dict[str, list[float | None]] = {"engine": [], "diffusers": [], "ComfyUI": []}
    with ExitStack() as stack:
        engine, diffusers = bench.engine_peer(stack), bench.diffusers_peer(stack)
        for peer in (engine, diffusers):
            peer.run()  # loads the checkpoint
        for _ in range(bench.size.alone):
            loads.append((await bench.at_once("alike", 1)).load)
            times["engine"].append(engine.run())
            times["diffusers"].append(diffusers.run())
            times["ComfyUI"].append(bench.comfyui_s("alike", 1))
    ours = [each.time_s for each in loads]
    service_s = median(ours)
    rows = [["service", service_s, percentile(ours, 95), 1.0]]
    for name, values in times.items():
        found = [each for each in values if each is not None]
        rows.append([name, median(values), percentile(found, 95), ratio(median(values), service_s)])
    bench.report.table(
        f"One job alone, {bench.size.alone} in turns",
        {"by": "", "median s": ".3f", "p95 s": ".3f", "of the service's": ".2f"},
        rows,
    )
    samples = [each.samples[0] for each in loads]
    stages = [median([each.stage_ms.get(name) for each in samples]) for name in _STAGES]
    bench.report.table(
        "Its time by Server-Timing: medians in ms", dict.fromkeys(_STAGES, ".1f"), [stages]
    )
