"""An engine in a process of its own, with the environment that a worker's engine has.

Reads a line with a number from its input, runs that many graphs at once, and answers the seconds.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from actors.workers import ENGINE_ENVIRONMENT  # what is compared must run alike
from engine.catalogue import Catalogue
from engine.engine import Engine, EngineEvent, Errored, Finished
from engine.graph import Graph, Limits, validate
from engine.models_folder import ModelsFolder
from engine.options import DeviceOptions
from examples.service import ROOT

CHECKPOINT = "darkroom-tiny.safetensors"


def graph(seed: int, *, checkpoint: str = CHECKPOINT, **sampler: Any) -> dict[str, Any]:
    """One 64 px image in 20 steps, in ComfyUI's API format; no two of its texts are the same."""
    settings = {
        "seed": seed,
        "steps": 20,
        "cfg": 7.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        **sampler,
    }
    return {
        "model": _node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "text": _node("CLIPTextEncode", text=prompt(seed), clip=["model", 1]),
        "nothing": _node("CLIPTextEncode", text="", clip=["model", 1]),
        "empty": _node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "sampler": _node(
            "KSampler",
            **settings,
            model=["model", 0],
            positive=["text", 0],
            negative=["nothing", 0],
            latent_image=["empty", 0],
        ),
        "pixels": _node("VAEDecode", samples=["sampler", 0], vae=["model", 2]),
        "image": _node("SaveImage", images=["pixels", 0], filename_prefix="darkroom"),
    }


def prompt(seed: int) -> str:
    """Of the graph with this seed."""
    return f"a large red circle, number {seed}"


def run_all(engine: Engine, graphs: Sequence[Graph]) -> float:
    """Seconds from the first submit to the last end, all at once."""
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


def _node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


class EngineAlone:
    """The process, seen from the benchmark; as nice to other processes as it is told."""

    def __init__(self, *, nice: int) -> None:
        self._nice = nice

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            ["nice", "-n", str(self._nice), sys.executable, "-m", __name__],
            env=os.environ | ENGINE_ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def run(self, jobs: int) -> float:
        """Seconds from the first submit to the last end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(jobs, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


def main() -> None:
    models = ModelsFolder(ROOT / "models")
    engine = Engine(models=models, options=DeviceOptions(threads=os.cpu_count()))
    engine.start()
    catalogue, seeds = Catalogue(models), itertools.count(1)
    for line in sys.stdin:
        graphs = [validate(graph(next(seeds)), catalogue, Limits()) for _ in range(int(line))]
        print(run_all(engine, graphs), flush=True)


if __name__ == "__main__":
    main()
