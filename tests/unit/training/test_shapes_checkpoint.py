"""The checkpoints that we ship draw the right colours; `benchmarks.shapes_score` has all scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.flow.export import CHECKPOINT as FLOW
from training.shapes.export import CHECKPOINT as SHAPES
from training.shapes.judge import judge
from training.shapes.scenes import COLOUR_NAMES
from training.shapes.studio import open_studio

MOST_BYTES = 25_000_000
ASKED = {
    "a large red circle on a white background": ("red", "white"),
    "on a blue background, a big yellow star": ("yellow", "blue"),
    "a green square over black": ("green", "black"),
    "a white heart on a purple background": ("white", "purple"),
}

pytestmark = pytest.mark.parametrize("checkpoint", [SHAPES, FLOW], ids=["shapes", "flow"])


def test_it_is_small_enough_to_ship(checkpoint: Path) -> None:
    assert checkpoint.stat().st_size <= MOST_BYTES


def test_it_draws_the_asked_colour_on_the_asked_background(checkpoint: Path) -> None:
    requests = [
        {"prompt": prompt, "seed": seed, "cfg_scale": 5.0, "steps": 10}
        for seed, prompt in enumerate(ASKED)
    ]
    with open_studio(checkpoint) as studio:
        pictures = studio.generate(requests)
    for picture, (colour, background) in zip(pictures, ASKED.values(), strict=True):
        seen = judge((picture / 255).astype(np.float32))
        assert COLOUR_NAMES[seen.background] == background
        assert COLOUR_NAMES[seen.patches[0].colour] == colour
