"""The jobs of the benchmarks, as graphs in ComfyUI's API format: images of 64 px in 20 steps, or
mixed jobs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from examples.service import ROOT

Graph: TypeAlias = dict[str, dict[str, Any]]

_TINY = ROOT / "models" / "checkpoints" / "darkroom-tiny.safetensors"
CHECKPOINT_FILE = Path(os.environ.get("BENCHMARK_CHECKPOINT") or _TINY)
"""The default is the tiny checkpoint. The configuration of a checkpoint is the folder with the same
name and the suffix `.config`.
"""
CHECKPOINT = CHECKPOINT_FILE.name
SIDE = 64
STEPS = 20
LORAS = tuple(f"benchmark-{number}.safetensors" for number in range(8))
MIXED: tuple[dict[str, Any], ...] = (
    {"sampler_name": "euler", "steps": 20},
    {"sampler_name": "dpmpp_2m", "scheduler": "karras", "steps": 14, "cfg": 5.0},
    {"sampler_name": "euler_ancestral", "steps": 26},
    {"sampler_name": "heun", "steps": 10, "cfg": 3.0},
    {"sampler_name": "dpmpp_2m_sde", "scheduler": "exponential", "steps": 18},
    {"sampler_name": "lcm", "scheduler": "simple", "steps": 8, "cfg": 1.0},
    {"sampler_name": "uni_pc", "steps": 12},
    {"sampler_name": "ddim", "scheduler": "ddim_uniform", "steps": 20, "cfg": 9.0},
)
SIDES = (64, 96, 64, 128)
"""The sizes of mixed jobs in px, in turn. Jobs of different sizes share no call."""


def graph(
    seed: int,
    *,
    checkpoint: str = CHECKPOINT,
    side: int = SIDE,
    lora: str | None = None,
    **sampler: Any,
) -> Graph:
    """Return a graph of one image whose text contains the seed. `sampler` has inputs of the
    KSampler.
    """
    settings = {
        "seed": seed,
        "steps": STEPS,
        "cfg": 7.0,
        "sampler_name": "euler",
        "scheduler": "normal",
        "denoise": 1.0,
        **sampler,
    }
    model, clip = ("lora", "lora") if lora else ("model", "model")
    nodes = {
        "model": _node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "text": _node("CLIPTextEncode", text=prompt(seed), clip=[clip, 1]),
        "nothing": _node("CLIPTextEncode", text="", clip=[clip, 1]),
        "empty": _node("EmptyLatentImage", width=side, height=side, batch_size=1),
        "sampler": _node(
            "KSampler",
            **settings,
            model=[model, 0],
            positive=["text", 0],
            negative=["nothing", 0],
            latent_image=["empty", 0],
        ),
        "pixels": _node("VAEDecode", samples=["sampler", 0], vae=["model", 2]),
        "image": _node("SaveImage", images=["pixels", 0], filename_prefix="darkroom"),
    }
    if lora:
        links = {"model": ["model", 0], "clip": ["model", 1]}
        strengths = {"strength_model": 1.0, "strength_clip": 1.0}
        nodes["lora"] = _node("LoraLoader", lora_name=lora, **links, **strengths)
    return nodes


def prompt(seed: int) -> str:
    """Return the text of the graph with this seed."""
    return f"a large red circle, number {seed}"


def _node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def alike(seed: int) -> Graph:
    return graph(seed)


def mixed(seed: int) -> Graph:
    """Return a graph with samplers, steps, guidance and sizes that differ from seed to seed."""
    side = SIDES[seed // len(MIXED) % len(SIDES)]
    return graph(seed, side=side, **MIXED[seed % len(MIXED)])


def with_lora(seed: int) -> Graph:
    return graph(seed, lora=LORAS[seed % len(LORAS)])


KINDS: Mapping[str, Callable[[int], Graph]] = {
    "alike": alike,
    "mixed": mixed,
    "8 LoRAs": with_lora,
}
"""The kinds of jobs. Each function makes the job of a seed."""


class Seeds:
    """Seeds that no earlier job of this run has used."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = itertools.count(1)

    def graphs(self, kind: str, count: int) -> Sequence[Graph]:
        return [KINDS[kind](next(self._numbers)) for _ in range(count)]
