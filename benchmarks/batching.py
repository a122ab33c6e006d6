"""Measures how much jobs on one engine gain by sharing UNet calls, and what the engine costs.

Jobs are 64 px images in 20 steps. Compared runs alternate, so that a busy machine slows both
equally. The benchmark measures:

- 16 equal jobs at once, and one after the other; the same for 8 jobs with different samplers, steps
  and guidance
- 16 jobs with 8 LoRAs at once, and 16 jobs without LoRAs
- the time of 16 jobs at once outside the networks, per job and step

usage: python -m benchmarks.batching [--checkpoint FILE] [--device cpu] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from torch.nn.modules import module as modules
from transformers import CLIPTextModel

from benchmarks.harness.graphs import CHECKPOINT, LORAS, MIXED, STEPS, graph
from benchmarks.harness.models import make_models
from benchmarks.harness.process import run_as_engine
from benchmarks.harness.report import Cell, Report
from benchmarks.peers.engine import run_all
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import DeviceOptions

MANY = 16
NETWORKS = (UNet2DConditionModel, AutoencoderKL, CLIPTextModel)

seeds = itertools.count(1)


def main() -> None:
    run_as_engine("benchmarks.batching")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batching")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = Report("batching")
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        models = Path(name) / "models"
        if args.checkpoint is None:
            make_models(models)
        else:
            models = args.checkpoint.parents[1]
        engine = _engine(models, args.device)
        bench = Bench(engine, models, args.checkpoint.name if args.checkpoint else CHECKPOINT)
        bench.together(MANY)  # loads the checkpoint and measures the memory of a row
        bench.together(MANY)
        _report_sharing(bench, report, args.rounds)
        if args.checkpoint is None:
            _report_loras(bench, report, args.rounds)
        _report_overhead(bench, report)
        engine.stop()
    report.write(args.json)


def _engine(models: Path, device: str) -> Engine:
    options = DeviceOptions(device=device, threads=os.cpu_count())
    engine = Engine(models=ModelsFolder(models), options=options)
    engine.start()
    return engine


class Bench:
    """Runs jobs on one engine. Each job has a new seed and text."""

    def __init__(self, engine: Engine, models: Path, checkpoint: str) -> None:
        self._engine = engine
        self._catalogue = Catalogue(ModelsFolder(models))
        self._checkpoint = checkpoint

    def together(self, jobs: int) -> float:
        """Run the jobs at once. Return the time in seconds."""
        return self._at_once([{}] * jobs)

    def in_turn(self, jobs: int) -> float:
        return sum(self._at_once([{}]) for _ in range(jobs))

    def mixed_together(self) -> float:
        return self._at_once(MIXED)

    def mixed_in_turn(self) -> float:
        return sum(self._at_once([each]) for each in MIXED)

    def loras_together(self, jobs: int) -> float:
        return self._at_once([{"lora": LORAS[at % len(LORAS)]} for at in range(jobs)])

    def _at_once(self, kinds: Sequence[dict[str, Any]]) -> float:
        prompts = [graph(next(seeds), checkpoint=self._checkpoint, **each) for each in kinds]
        graphs = [validate(each, self._catalogue, Limits()) for each in prompts]
        return run_all(self._engine, graphs)


def _report_sharing(bench: Bench, report: Report, rounds: int) -> None:
    rows: list[list[Cell]] = []
    for name, at_once, in_turn in (
        (f"{MANY} alike", lambda: bench.together(MANY), lambda: bench.in_turn(MANY)),
        (f"{len(MIXED)} mixed", bench.mixed_together, bench.mixed_in_turn),
    ):
        rows.append([name, *_compared(at_once, in_turn, rounds)])
    report.table(
        f"Jobs that share calls: seconds, medians of {rounds}",
        {"jobs": "", "at once": ".3f", "in turn": ".3f", "gain": ".2f", "from": ".2f", "to": ".2f"},
        rows,
    )


def _report_loras(bench: Bench, report: Report, rounds: int) -> None:
    bench.loras_together(MANY)  # loads them
    row = _compared(lambda: bench.loras_together(MANY), lambda: bench.together(MANY), rounds)
    report.table(
        f"{MANY} jobs with {len(LORAS)} LoRAs: seconds, medians of {rounds}",
        {
            "with": ".3f",
            "without": ".3f",
            "rate with, of without": ".2f",
            "from": ".2f",
            "to": ".2f",
        },
        [row],
    )


def _report_overhead(bench: Bench, report: Report) -> None:
    with _network_seconds() as spent:
        total = bench.together(MANY)
    outside_ms = (total - sum(spent)) / (MANY * STEPS) * 1000
    report.table(
        f"Dependencies the networks, {MANY} jobs at once",
        {"ms a job and step": ".3f"},
        [[outside_ms]],
    )


def _compared(one: Callable[[], float], other: Callable[[], float], rounds: int) -> list[float]:
    """Run both in turns. Return the median of each, and the median, minimum and maximum of their
    ratio.
    """
    pairs = [(one(), other()) for _ in range(rounds)]
    gains = [theirs / ours for ours, theirs in pairs]
    medians = [statistics.median(each) for each in zip(*pairs, strict=True)]
    return [*medians, statistics.median(gains), min(gains), max(gains)]


@contextmanager
def _network_seconds() -> Iterator[list[float]]:
    """Yield a list to which the seconds of each network call are added until the end of the
    context.
    """
    spent: list[float] = []
    began: list[float] = []

    def before(network: nn.Module, _inputs: object) -> None:
        if isinstance(network, NETWORKS):
            began.append(time.perf_counter())

    def after(network: nn.Module, _inputs: object, _output: object) -> None:
        if isinstance(network, NETWORKS):
            spent.append(time.perf_counter() - began.pop())

    hooks = [
        modules.register_module_forward_pre_hook(before),
        modules.register_module_forward_hook(after),
    ]
    decode = AutoencoderKL.decode
    AutoencoderKL.decode = _timed(decode, spent)  # this class has no forward method
    try:
        yield spent
    finally:
        AutoencoderKL.decode = decode
        for hook in hooks:
            hook.remove()


def _timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **options)
        finally:
            spent.append(time.perf_counter() - began)

    return timed


if __name__ == "__main__":
    main()
