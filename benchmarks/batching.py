"""One engine and many jobs: how much they gain by sharing UNet calls, and what the engine costs.

64 px images in 20 steps. What is compared takes turns, so that a busy machine slows both alike:

- 16 jobs at once, against the same one after another; 8 with mixed samplers, steps and guidance
- one job alone, against a plain loop of diffusers over the same weights
- what 16 jobs at once take outside the networks, per job and step
- jobs per second, against a ComfyUI at COMFYUI_URL that has the same checkpoint

usage: python -m benchmarks.batching [--checkpoint FILE] [--device cpu] [--rounds 5]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from torch.nn.modules import module as modules
from transformers import CLIPTextModel

from actors.dispatch.ray_cluster import ENGINE_ENVIRONMENT
from benchmarks._engine import CHECKPOINT, graph, run_all
from benchmarks._process import Process
from benchmarks._report import console, print_hardware, print_table
from engine.engine import Engine
from engine.graph.catalogue import Catalogue
from engine.graph.graph import Graph
from engine.graph.limits import Limits
from engine.graph.models_folder import ModelsFolder
from engine.graph.validation import validate
from engine.options import DeviceOptions
from examples.service import ROOT

MANY = 16
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
NETWORKS = (UNet2DConditionModel, AutoencoderKL, CLIPTextModel)
COMFYUI_TIMEOUT_S = 600.0

seeds = itertools.count(1)


def main() -> None:
    _restart_with(ENGINE_ENVIRONMENT)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.batching")
    default = ROOT / "models" / "checkpoints" / CHECKPOINT
    parser.add_argument("--checkpoint", type=Path, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print_hardware()
    models = ModelsFolder(args.checkpoint.parents[1])
    options = DeviceOptions(device=args.device, threads=os.cpu_count())
    engine = Engine(models=models, options=options)
    engine.start()
    bench = Bench(engine, Catalogue(models), args.checkpoint.name)
    bench.together(MANY)  # loads the checkpoint, and the engine learns what a row takes
    bench.together(MANY)
    _report_sharing(bench, args.rounds)
    _report_alone(bench, args.checkpoint, args.device, args.rounds)
    _report_overhead(bench)
    if url := os.environ.get("COMFYUI_URL"):
        _report_comfyui(bench, url, args.rounds)
    engine.stop()


def _restart_with(environment: dict[str, str]) -> None:
    """The allocator and OpenMP read theirs when a process starts."""
    if not environment.items() <= os.environ.items():
        arguments = [sys.executable, "-m", "benchmarks.batching", *sys.argv[1:]]
        os.execve(sys.executable, arguments, os.environ | environment)


class Bench:
    """Jobs on one engine; every call makes them with fresh seeds and texts."""

    def __init__(self, engine: Engine, catalogue: Catalogue, checkpoint: str) -> None:
        self._engine = engine
        self._catalogue = catalogue
        self._checkpoint = checkpoint

    def prompt_of(self, **sampler: Any) -> dict[str, Any]:
        return graph(next(seeds), checkpoint=self._checkpoint, **sampler)

    def together(self, jobs: int) -> float:
        """Seconds."""
        return run_all(self._engine, self._graphs([{}] * jobs))

    def in_turn(self, jobs: int) -> float:
        return sum(run_all(self._engine, [each]) for each in self._graphs([{}] * jobs))

    def mixed_together(self) -> float:
        return run_all(self._engine, self._graphs(MIXED))

    def mixed_in_turn(self) -> float:
        return sum(run_all(self._engine, [each]) for each in self._graphs(MIXED))

    def _graphs(self, samplers: Sequence[dict[str, Any]]) -> list[Graph]:
        return [validate(self.prompt_of(**each), self._catalogue, Limits()) for each in samplers]


def _report_sharing(bench: Bench, rounds: int) -> None:
    table = []
    for name, at_once, in_turn in (
        (f"{MANY} alike", lambda: bench.together(MANY), lambda: bench.in_turn(MANY)),
        (f"{len(MIXED)} mixed", bench.mixed_together, bench.mixed_in_turn),
    ):
        once, turns = _in_turns(at_once, in_turn, rounds)
        gains = [b / a for a, b in zip(once, turns, strict=True)]
        row = [_seconds(once), _seconds(turns), f"{statistics.median(gains):.2f}"]
        table.append([name, *row, f"{min(gains):.2f} to {max(gains):.2f}"])
    columns = ("jobs", "at once", "in turn", "gain", "from, to")
    print_table(f"Jobs that share calls: seconds, medians of {rounds}", columns, table)


def _report_alone(bench: Bench, checkpoint: Path, device: str, rounds: int) -> None:
    with Process("benchmarks._diffusers", str(checkpoint), device) as loop:
        loop.run()
        ours, plain = _in_turns(lambda: bench.together(1), loop.run, 3 * rounds)
    ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
    columns = ("", "engine", "diffusers", "ratio")
    rows = [["one job", _seconds(ours), _seconds(plain), f"{ratio:.3f}"]]
    print_table(f"One job alone: seconds, medians of {3 * rounds}", columns, rows)


def _report_overhead(bench: Bench) -> None:
    with _network_seconds() as spent:
        total = bench.together(MANY)
    outside_ms = (total - sum(spent)) / (MANY * 20) * 1000
    console.print(f"Outside the networks, {MANY} jobs at once: {outside_ms:.3f} ms a job and step")


def _report_comfyui(bench: Bench, url: str, rounds: int) -> None:
    def comfyui() -> float:
        return _comfyui(url, [bench.prompt_of() for _ in range(MANY)])

    comfyui()
    ours, theirs = _in_turns(lambda: bench.together(MANY), comfyui, rounds)
    rate, other = MANY / statistics.median(ours), MANY / statistics.median(theirs)
    rows = [[f"{MANY} at once", f"{rate:.2f}", f"{other:.2f}", f"{rate / other:.2f}"]]
    print_table("Jobs per second", ("", "engine", "ComfyUI", "ratio"), rows)


def _in_turns(
    one: Callable[[], float], other: Callable[[], float], rounds: int
) -> tuple[list[float], list[float]]:
    pairs = [(one(), other()) for _ in range(rounds)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _seconds(each: Sequence[float]) -> str:
    return f"{statistics.median(each):.3f}"


@contextmanager
def _network_seconds() -> Iterator[list[float]]:
    """Filled with the seconds of each call of a network, meanwhile."""
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
    AutoencoderKL.decode = _timed(decode, spent)  # it has no forward of its own
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


def _comfyui(url: str, prompts: Sequence[dict[str, Any]]) -> float:
    """Seconds until a ComfyUI has run them all."""
    with httpx.Client(base_url=url, timeout=COMFYUI_TIMEOUT_S) as client:
        began = time.perf_counter()
        ids = [
            client.post("/prompt", json={"prompt": each}).raise_for_status().json()["prompt_id"]
            for each in prompts
        ]
        while any(not client.get(f"/history/{each}").json() for each in ids):
            time.sleep(0.02)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
