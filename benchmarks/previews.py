"""Measures how much longer a job with previews takes on one engine.

Jobs with and without previews alternate, so that a busy machine slows both equally. The same is
measured for a job that runs beside a job with previews. Previews are made at the engine's
default interval.

usage: python -m benchmarks.previews [--side 512] [--steps 40] [--rounds 9] [--device cpu]
       [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from benchmarks.harness.graphs import graph
from benchmarks.harness.models import make_models
from benchmarks.harness.process import run_as_engine
from benchmarks.harness.report import Cell, Report
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import DeviceOptions, RunOptions
from engine.reports import EngineEvent, Errored, Finished, Progress

MOST = 1.03
"""The largest allowed ratio of the time with previews to the time without them."""
COLUMNS = {
    "what takes longer": "",
    "without": ".3f",
    "with": ".3f",
    "ratio": ".3f",
    "from": ".3f",
    "to": ".3f",
    "ratio of CPU": ".3f",
    "previews": ".1f",
}


def main() -> None:
    run_as_engine("benchmarks.previews")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.previews")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    report = Report("previews")
    title = (
        f"{args.side} px in {args.steps} steps, with previews: "
        f"seconds, medians of {args.rounds}; a ratio of {MOST:g} is allowed"
    )
    report.table(title, COLUMNS, _rows(args))
    report.write(args.json)


def _rows(args: argparse.Namespace) -> list[list[Cell]]:
    with tempfile.TemporaryDirectory(prefix="darkroom-") as name:
        models = ModelsFolder(Path(name) / "models")
        make_models(models.root)
        options = DeviceOptions(device=args.device, threads=os.cpu_count())
        engine = Engine(models=models, options=options)
        engine.start()
        bench = Bench(engine, Catalogue(models), side=args.side, steps=args.steps)
        bench.jobs([False])  # loads the checkpoint
        turns = [False, True] * args.rounds
        rows = [
            _compared("itself", [bench.alone(has) for has in turns]),
            _compared("its neighbour", [bench.beside(has) for has in turns]),
        ]
        engine.stop()
    return rows


@dataclass
class Told:
    """The measurements of one job."""

    took_s: float = 0.0
    cpu_s: float = 0.0
    """The CPU time of the process until the end of all jobs that ran together."""
    previews: int = 0
    ended: SimpleQueue[EngineEvent] = field(default_factory=SimpleQueue)


class Bench:
    """Runs jobs on one engine. Each job has a new seed and text."""

    def __init__(self, engine: Engine, catalogue: Catalogue, *, side: int, steps: int) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._side = side
        self._steps = steps
        self._seeds = itertools.count(1)

    def alone(self, has_previews: bool) -> Told:
        return self.jobs([has_previews])[0]

    def beside(self, has_previews: bool) -> Told:
        """Run a job without previews, beside a job with or without them."""
        other, told = self.jobs([has_previews, False])
        told.previews = other.previews
        return told

    def jobs(self, previews: Sequence[bool]) -> list[Told]:
        """Run the jobs concurrently."""
        began, cpu_began = time.perf_counter(), time.process_time()
        told = [self._submitted(each, began) for each in previews]
        for each in told:
            if isinstance(end := each.ended.get(), Errored):
                raise end.error
            each.cpu_s = time.process_time() - cpu_began
        return told

    def _submitted(self, has_previews: bool, began: float) -> Told:
        told = Told()

        def take(event: EngineEvent) -> None:
            if isinstance(event, Progress):
                told.previews += event.preview is not None
            elif isinstance(event, Finished | Errored):
                told.took_s = time.perf_counter() - began
                told.ended.put(event)

        prompt = graph(next(self._seeds), side=self._side, steps=self._steps)
        valid = validate(prompt, self._catalogue, Limits())
        self._engine.submit(valid, RunOptions(has_previews=has_previews), on_event=take)
        return told


def _compared(name: str, told: Sequence[Told]) -> list[Cell]:
    without, shown = told[::2], told[1::2]
    pairs = list(zip(without, shown, strict=True))
    ratios = [b.took_s / a.took_s for a, b in pairs]
    return [
        name,
        statistics.median(each.took_s for each in without),
        statistics.median(each.took_s for each in shown),
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(b.cpu_s / a.cpu_s for a, b in pairs),
        statistics.mean(each.previews for each in shown),
    ]


if __name__ == "__main__":
    main()
