"""The Brownian path against that of torchsde, which ComfyUI and the WebUI use."""

from __future__ import annotations

import random

import pytest
import torch
import torchsde  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from engine.diffusion.samplers.brownian import BrownianPath
from engine.diffusion.samplers.noise_sources import cpu_randn

SHAPE = (1, 4, 3, 3)
START, END = 0.029167, 14.614641


def normal(seed: int) -> Tensor:
    return cpu_randn(seed)(SHAPE)


@pytest.mark.parametrize("seed", [0, 5, 2**64 - 1])
def test_each_change_is_that_of_torchsde(seed: int) -> None:
    path = BrownianPath(START, END, seed, normal)
    tree = torchsde.BrownianTree(t0=START, w0=torch.zeros(SHAPE), t1=END, entropy=seed)
    points = random.Random(seed)
    for _ in range(30):
        low, high = sorted(round(points.uniform(START, END), 6) for _ in range(2))
        assert torch.equal(path.change(low, high), tree(low, high)), (low, high)
    assert torch.equal(path.change(START, END), tree(START, END))
    high = round(low + 1e-6, 6)
    assert torch.equal(path.change(low, high), tree(low, high))


def test_nothing_changes_between_equal_ends() -> None:
    path = BrownianPath(START, END, 1, normal)
    assert torch.equal(path.change(0.5, 0.5), torch.zeros(SHAPE))


def test_a_next_step_draws_only_the_part_that_the_last_step_has_not_split() -> None:
    seeds: list[int] = []

    def counted(seed: int) -> Tensor:
        seeds.append(seed)
        return normal(seed)

    path = BrownianPath(START, END, 1, counted)
    path.change(4.0, 5.0)
    first = len(seeds)
    path.change(4.0, 5.0)
    assert len(seeds) == first
    path.change(3.999, 4.0)
    assert 0 < len(seeds) - first < first - 5
    assert len(set(seeds)) == len(seeds)
