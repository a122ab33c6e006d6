"""An engine in its own process (see `harness/process.py`), which runs graphs concurrently.

usage: python -m benchmarks.peers.engine MODELS DEVICE
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from benchmarks.harness.graphs import Seeds
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import DeviceOptions
from engine.reports import EngineEvent, Errored, Finished


def run_all(engine: Engine, graphs: Sequence[Graph]) -> float:
    """Run the graphs. Return the time in seconds from the first submission to the last end."""
    ends: SimpleQueue[EngineEvent] = SimpleQueue()

    def take(event: EngineEvent) -> None:
        if isinstance(event, Finished | Errored):
            ends.put(event)

    began = time.perf_counter()
    for each in graphs:
        engine.submit(each, on_event=take)
    for _ in graphs:
        if isinstance(end := ends.get(), Errored):
            raise end.error
    return time.perf_counter() - began


def main() -> None:
    models = ModelsFolder(Path(sys.argv[1]))
    options = DeviceOptions(device=sys.argv[2], threads=os.cpu_count())
    engine = Engine(models=models, options=options)
    engine.start()
    catalogue, seeds = Catalogue(models), Seeds()
    for line in sys.stdin:
        kind, count = line.rsplit(maxsplit=1)
        prompts = seeds.graphs(kind, int(count))
        graphs = [validate(each, catalogue, Limits()) for each in prompts]
        print(run_all(engine, graphs), flush=True)


if __name__ == "__main__":
    main()
