"""An engine in a process of its own (see `_process`), which runs a number of graphs at once."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import DeviceOptions
from engine.reports import EngineEvent, Errored, Finished
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
