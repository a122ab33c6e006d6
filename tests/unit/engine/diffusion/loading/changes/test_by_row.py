"""Which changes are added by row: those that are cheap whatever a file says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from engine.diffusion.loading.changes.by_row import row_size
from engine.diffusion.loading.changes.change import Change
from engine.diffusion.loading.changes.layers import Place

_LINEAR, _CONVOLUTION = torch.Size((64, 32)), torch.Size((64, 32, 3, 3))


def size_of(shapes: Mapping[str, tuple[int, ...]], weight: torch.Size) -> int | None:
    change = Change("layer", {name: f"layer.{name}" for name in shapes})
    return row_size(change, shapes, weight, (Place("layer"),))


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [((8, 4), (8, 8), 96), ((4, 4), (16, 8), 144), ((1, 32), (64, 1), None)],
)
def test_a_lokr_whose_halfway_is_as_large_as_the_weight_is_merged(
    first: tuple[int, int], second: tuple[int, int], size: int | None
) -> None:
    assert size_of({"lokr_w1": first, "lokr_w2": second}, _LINEAR) == size


def test_the_rank_of_a_core_counts() -> None:
    shapes = {"up": (64, 16, 1, 1), "down": (2, 32, 1, 1), "mid": (16, 2, 3, 3)}
    assert size_of(shapes, _CONVOLUTION) == 16 * (64 + 32 * 9)
