"""Functions for palettes of colours, tiles and shuffled contents."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from darkroom_preprocessors.planes import at_resolution, by_area, cubic, enlarged

_CELL = 64
_SHUFFLED_CELL = 256


def palette(planes: Tensor, *, resolution: int) -> Tensor:
    """Return the image as squares of 64 pixels that have one colour each."""
    planes = at_resolution(planes, resolution, upscaled_by_area=True)
    height, width = planes.shape[1:]
    squares = cubic(planes, max(1, width // _CELL), max(1, height // _CELL))
    return functional.interpolate(squares[None], size=(height, width), mode="nearest")[0]


def tile_sides(width: int, height: int, doublings: int) -> tuple[int, int]:
    """Return width and height of an image after `tile`."""
    rounded = (round(side / _CELL) * _CELL for side in (width, height))
    across, down = (max(1, side >> doublings) for side in rounded)
    return across << doublings, down << doublings


def tile(planes: Tensor, *, doublings: int) -> Tensor:
    """Remove the details of an image by shrinking it and doubling its size `doublings` times."""
    height, width = planes.shape[1:]
    across, down = (side >> doublings for side in tile_sides(width, height, doublings))
    planes = by_area(planes, across, down)
    for _ in range(doublings):
        planes = enlarged(planes)
    return planes


def shuffled(planes: Tensor, *, seed: int, resolution: int) -> Tensor:
    """Move the contents of an image along a smooth random field."""
    planes = at_resolution(planes, resolution)
    generator = torch.Generator().manual_seed(seed)
    height, width = planes.shape[1:]
    field = torch.stack([_smooth(height, width, generator) for _ in range(2)], -1)
    grid = (field * 2 - 1).to(planes.device)
    moved = functional.grid_sample(planes[None], grid[None], align_corners=True)[0]
    return moved.round()


def _smooth(height: int, width: int, generator: torch.Generator) -> Tensor:
    """Return a smooth random field, (height, width), scaled to 0..1."""
    cell = _SHUFFLED_CELL
    few = torch.rand(1, 1, height // cell + 2, width // cell + 2, generator=generator)
    sides = height + 2 * cell, width + 2 * cell
    many = functional.interpolate(few, size=sides, mode="bicubic")[0, 0]
    middle = many[cell : cell + height, cell : cell + width]
    least, most = middle.aminmax()
    return (middle - least) / (most - least).clamp(min=1e-6)
