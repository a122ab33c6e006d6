"""Edges of images: Canny 1986, "A computational approach to edge detection"."""

from __future__ import annotations

import torch
from scipy import ndimage  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor
from torch.nn import functional

from engine.batcher import Turn, Work
from engine.diffusion.images.latents import Images, Mask
from engine.errors import EngineError

_LUMA = (0.299, 0.587, 0.114)
_RADIUS = 2
_SIGMA = 1.0
_SOBEL = (-1.0, 0.0, 1.0), (1.0, 2.0, 1.0)
_LEAST = 1e-6
_EIGHTH = torch.pi / 4
_WAYS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
"""Rows and columns to the next place in each direction of a gradient."""


def canny_edges(images: Images, *, low: float, high: float) -> Work[Mask]:
    """1 where the gradient is above `high`, or above `low` and joined to such a place.

    Others have their turns between two images. Raises EngineError for images that are too small to
    be smoothed.
    """
    height, width = images.shape[1:3]
    if min(height, width) <= _RADIUS:
        raise EngineError(f"An image of {width} x {height} pixels is too small for edges.")
    found: list[Mask] = []
    for image in images.split(1):
        ridges = _ridges((image * torch.tensor(_LUMA)).sum(-1)[:, None])
        found.append(_joined(ridges > low, ridges > high))
        yield Turn()
    return torch.stack(found)


def _ridges(grey: Tensor) -> Tensor:
    """(height, width): the gradient where it is largest across the edge, else 0."""
    across, down = _gradient(_smoothed(grey))
    strength = (across.square() + down.square() + _LEAST).sqrt()
    found: Tensor = (strength * _is_largest(strength, torch.atan2(down, across)))[0, 0]
    return found


def _smoothed(grey: Tensor) -> Tensor:
    places = torch.arange(-_RADIUS, _RADIUS + 1).float()
    weights = (-places.square() / (2 * _SIGMA**2)).exp()
    weights /= weights.sum()
    padded = functional.pad(grey, (_RADIUS,) * 4, mode="reflect")
    return functional.conv2d(
        functional.conv2d(padded, weights.view(1, 1, 1, -1)), weights.view(1, 1, -1, 1)
    )


def _gradient(grey: Tensor) -> tuple[Tensor, Tensor]:
    """Across and down: Sobel's operator."""
    change, mean = map(torch.tensor, _SOBEL)
    padded = functional.pad(grey, (1,) * 4, mode="replicate")
    across = mean[:, None] * change
    return (
        functional.conv2d(padded, across[None, None]),
        functional.conv2d(padded, across.T[None, None]),
    )


def _is_largest(strength: Tensor, angle: Tensor) -> Tensor:
    """Where it is largest along the gradient, of whose directions there are 8.

    Of two equal places, as beside a straight edge, the one on the dark side counts.
    """
    direction = (angle / _EIGHTH).round().long() % len(_WAYS)
    padded = functional.pad(strength, (1,) * 4)
    height, width = strength.shape[2:]

    def beside(rows: int, columns: int) -> Tensor:
        return padded[..., 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    found = torch.zeros_like(strength, dtype=torch.bool)
    for number, (rows, columns) in enumerate(_WAYS):
        is_peak = (strength >= beside(rows, columns)) & (strength > beside(-rows, -columns))
        found |= is_peak & (direction == number)
    return found


def _joined(weak: Tensor, strong: Tensor) -> Tensor:
    """The weak places that are joined to a strong one, also by their corners."""
    numbers, count = ndimage.label(weak.numpy(), structure=[[1] * 3] * 3)
    numbers = torch.from_numpy(numbers).long()
    keeps = torch.zeros(count + 1)
    keeps[numbers[strong]] = 1.0
    keeps[0] = 0.0
    return keeps[numbers]
