"""Scores how well the pictures of `darkroom-shapes`, or of another model of the same shapes, match
their prompts.

The pictures are made through the engine. Their combinations of shape, colour and background are not
in the training data, and captions and seeds are new. A judge without a network recognises the
content of a picture. The first table shows the share of drawn pictures that the judge recognises
correctly.

usage: python -m benchmarks.shapes_score [--prompts 200] [--per-sampler 100] [--checkpoint FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import console, print_hardware, print_table
from engine.families.family import Family
from engine.families.recognition import checkpoint_family
from engine.graph.names import SAMPLERS, SCHEDULERS
from engine.graph.safetensors_header import read_header
from engine.webui.sampler_names import follows_timesteps
from training.shapes.captions import full_caption
from training.shapes.drawing import draw
from training.shapes.export import CHECKPOINT
from training.shapes.judge import judge
from training.shapes.scenes import COLOUR_NAMES, HELD_OUT, SHAPE_NAMES, Scenes, draw_scenes
from training.shapes.scoring import Score, mean, score
from training.shapes.studio import Studio, open_studio

SEED = 20_261_120
CFG = 5.0
STEPS = 20
ALONE_PICTURES = 15

Pictures = NDArray[np.uint8]
CLASSES = {"one shape": (1, 0, 0), "two shapes": (0, 1, 0), "three shapes": (0, 0, 1)}


@dataclass(frozen=True, slots=True)
class Task:
    """Scenes, and a prompt for each scene."""

    scenes: Scenes
    prompts: Sequence[str]

    def requests(self, **more: Any) -> list[dict[str, Any]]:
        shared = {"steps": STEPS, "cfg_scale": CFG, **more}
        return [
            {"prompt": prompt, "seed": SEED + row, **shared}
            for row, prompt in enumerate(self.prompts)
        ]

    def scores(self, pictures: Pictures) -> list[Score]:
        return [score(_floats(each), self.scenes, row) for row, each in enumerate(pictures)]

    def first(self, n: int) -> Task:
        return Task(self.scenes.subset(slice(n)), self.prompts[:n])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shapes_score")
    parser.add_argument("--prompts", type=int, default=200, help="of each class")
    parser.add_argument(
        "--per-sampler", type=int, default=100, help="prompts for each; 0: leave them out"
    )
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    args = parser.parse_args()
    is_flow = checkpoint_family(read_header(args.checkpoint)) is Family.Z_IMAGE
    print_hardware()
    tasks = {name: _task(counts, args.prompts) for name, counts in CLASSES.items()}
    _report_judge(tasks)
    with open_studio(args.checkpoint) as studio:
        _report_classes(studio, tasks)
        one = tasks["one shape"]
        for name, task in tasks.items():
            _report_guidance(studio, name, task, GUIDANCE[:2] if is_flow else GUIDANCE)
        _report_negative(studio, args.prompts)
        if args.per_sampler:
            _report_samplers(studio, one.first(args.per_sampler), is_flow=is_flow)
        _report_single(studio, one)


def _task(counts: Sequence[int], n: int) -> Task:
    rng = np.random.default_rng((SEED, *counts))
    scenes = draw_scenes(rng, n, allowed=HELD_OUT, counts=counts, textured=0)
    words = Random(f"{SEED} {counts}")
    return Task(scenes, [full_caption(scenes, row, words) for row in range(n)])


def _floats(picture: Pictures) -> NDArray[np.float32]:
    # The engine rounds down, so half a step is added.
    return ((picture + 0.5) / 256).astype(np.float32)


def _report_judge(tasks: Mapping[str, Task]) -> None:
    rng = np.random.default_rng(SEED)
    rows = []
    for name, task in tasks.items():
        drawn = (draw(task.scenes, rng) * 255).astype(np.uint8)
        rows.append([name, *_shares(task.scores(drawn))])
    print_table("The judge on drawn pictures", ("", *_COLUMNS), rows)


_COLUMNS = ("background", "colour", "shape", "order", "all of a picture")


def _shares(scores: Sequence[Score]) -> list[str]:
    columns = ("background", "colours", "shapes", "relation", "all_right")
    return [_percent(mean(getattr(each, column) for each in scores)) for column in columns]


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _report_classes(studio: Studio, tasks: Mapping[str, Task]) -> None:
    rows, misses = [], []
    for name, task in tasks.items():
        scores = task.scores(studio.generate(task.requests()))
        rows.append([name, *_shares(scores)])
        misses += [
            [SHAPE_NAMES[shape], _percent(mean(_of_shape(task.scenes, scores, shape)))]
            for shape in range(len(SHAPE_NAMES))
            if name == "one shape"
        ]
    n = len(next(iter(tasks.values())).prompts)
    title = f"Held-out combinations: {n} prompts a class, Euler, {STEPS} steps, cfg {CFG:g}"
    print_table(title, ("", *_COLUMNS), rows)
    print_table("One shape, by shape", ("", "shape right"), misses)


def _of_shape(scenes: Scenes, scores: Sequence[Score], shape: int) -> list[float]:
    rows = np.flatnonzero(scenes.shapes[:, 0] == shape)
    return [scores[int(row)].shapes for row in rows] or [float("nan")]


GUIDANCE: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("cfg 5", {}),
    ("cfg 1", {"cfg_scale": 1.0}),
    # a language model has no alternative layer for clip_skip
    ("cfg 5, clip_skip 2", {"clip_skip": 2}),
)


def _report_guidance(
    studio: Studio, name: str, task: Task, settings: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    rows = []
    usual: Pictures | None = None
    for label, more in settings:
        pictures = studio.generate(task.requests(**more))
        usual = pictures if usual is None else usual
        unlike = mean(float((a != b).any()) for a, b in zip(usual, pictures, strict=True))
        rows.append([label, *_shares(task.scores(pictures)), _percent(unlike)])
    print_table(f"Guidance: {name}", ("", *_COLUMNS, "other pictures"), rows)


def _report_negative(studio: Studio, n: int) -> None:
    """Report the share of shapes in a colour, without a negative prompt and with this colour as
    negative prompt.
    """
    prompts = [f"a {SHAPE_NAMES[row % len(SHAPE_NAMES)]}" for row in range(n)]
    warned = [COLOUR_NAMES[row % len(COLOUR_NAMES)] for row in range(n)]
    shared = {"steps": STEPS, "cfg_scale": CFG}
    free = [{"prompt": prompt, "seed": row, **shared} for row, prompt in enumerate(prompts)]
    against = [
        {**request, "negative_prompt": colour} for request, colour in zip(free, warned, strict=True)
    ]
    rows = [
        [
            name,
            _percent(mean(_has(each, colour) for each, colour in zip(found, warned, strict=True))),
        ]
        for name, found in (("without", studio.generate(free)), ("with", studio.generate(against)))
    ]
    print_table("A colour as negative prompt", ("", "shapes of that colour"), rows)


def _has(picture: Pictures, colour: str) -> float:
    patches = judge(_floats(picture)).patches
    return float(bool(patches) and COLOUR_NAMES[patches[0].colour] == colour)


def _report_samplers(studio: Studio, task: Task, *, is_flow: bool) -> None:
    rows = []
    for sampler in SAMPLERS:
        if is_flow and follows_timesteps(sampler):
            continue
        for scheduler in SCHEDULERS:
            names = {"sampler_name": sampler.label, "scheduler": scheduler.label}
            scores = task.scores(studio.generate(task.requests(**names)))
            rows.append([f"{sampler.label}, {scheduler.label}", *_shares(scores)])
    title = f"One shape, {len(task.prompts)} prompts, {STEPS} steps"
    print_table(title, ("", *_COLUMNS), rows)


def _report_single(studio: Studio, task: Task) -> None:
    seconds = []
    for request in task.requests()[:ALONE_PICTURES]:
        began = time.perf_counter()
        studio.generate([request])
        seconds.append(time.perf_counter() - began)
    console.print(
        f"A picture alone, {STEPS} steps: median {statistics.median(seconds):.2f} s,"
        f" longest {max(seconds):.2f} s"
    )
    one = task.requests()[0]
    same = bool((studio.generate([one]) == studio.generate([one])).all())
    console.print(f"The same seed gives the same picture: {'yes' if same else 'NO'}")


if __name__ == "__main__":
    main()
