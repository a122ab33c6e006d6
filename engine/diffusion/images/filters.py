"""Filters of images: blur, sharpening, quantization and edges.

The edges are computed as in Canny 1986, "A computational approach to edge detection".
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from scipy import ndimage  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor
from torch.nn import functional

from engine.batcher import Work, YieldRequest
from engine.diffusion.images.latents import COLOURS, Images, Mask
from engine.diffusion.images.masks import VALUES_BETWEEN_YIELDS
from engine.errors import EngineError

_SPREAD = 512.0
"""The range of a threshold map is this number, divided by the number of colours."""
_SHARPENING = 10.0
"""At a strength of 1, the difference from the blurred image is multiplied by this factor."""


def blurred(images: Images, radius: int, sigma: float) -> Work[Images]:
    """Blur images by a Gaussian function within `radius` pixels; images are reflected at the sides.

    `sigma` is measured in units of the radius. Other runs may proceed during the computation.
    Raises EngineError if the radius is not smaller than both sides.
    """
    height, width = images.shape[1:3]
    if radius >= min(height, width):
        raise EngineError(f"A radius of {radius} is too large for {width} x {height} pixels.")
    places = torch.linspace(-1, 1, 2 * radius + 1)
    weights = (-(places**2) / (2 * sigma**2)).exp()
    weights /= weights.sum()
    planes = functional.pad(images.movedim(-1, 1), (radius,) * 4, mode="reflect")
    columns = yield from _along(planes, weights, 2)
    return (yield from _along(columns, weights, 3)).movedim(1, -1)


def _along(planes: Tensor, weights: Tensor, side: int) -> Work[Tensor]:
    length = planes.shape[side] - len(weights) + 1
    total, done = torch.zeros_like(planes.narrow(side, 0, length)), 0
    for place, weight in enumerate(weights.tolist()):
        total.add_(planes.narrow(side, place, length), alpha=weight)
        done += total.numel()
        if done > VALUES_BETWEEN_YIELDS:
            yield YieldRequest()
            done = 0
    return total


def sharpened(images: Images, radius: int, sigma: float, *, strength: float) -> Work[Images]:
    """Sharpen images by adding their difference from the blurred images (unsharp masking)."""
    if strength == 0:
        return images
    difference = images - (yield from blurred(images, radius, sigma))
    return (images + _SHARPENING * strength * difference).clamp(0, 1)


def quantized(images: Images, colours: int, *, dither: str) -> Work[Images]:
    """Reduce each image to at most `colours` colours, which are chosen for each image.

    Other runs may proceed between two images. `dither` is "none", "floyd-steinberg" or "bayer-n",
    where n is the side of the matrix.
    """
    found: list[Tensor] = []
    for image in images:
        found.append(_quantized(image[..., :COLOURS], colours, dither=dither))
        yield YieldRequest()
    return torch.cat((torch.stack(found), images[..., COLOURS:]), dim=-1)


def _quantized(image: Tensor, colours: int, *, dither: str) -> Tensor:
    levels = (image * 255).clamp(0, 255).to(torch.uint8)
    picture = Image.fromarray(levels.numpy())
    palette = picture.quantize(colours)
    kind, _, side = dither.partition("-")
    if kind == "bayer":
        spread = _SPREAD / (len(palette.getpalette() or ()) // 3)
        picture = Image.fromarray(_ordered(levels, int(side), spread).numpy())
    spreading = Image.Dither.FLOYDSTEINBERG if kind == "floyd" else Image.Dither.NONE
    reduced = picture.quantize(colours, palette=palette, dither=spreading).convert("RGB")
    return torch.from_numpy(np.array(reduced, dtype=np.float32) / 255.0)


def _ordered(levels: Tensor, side: int, spread: float) -> Tensor:
    """Add a threshold map, whose values span `spread`, to levels (height, width, 3)."""
    height, width = levels.shape[:2]
    thresholds = _bayer(side) * spread + 0.5
    tiles = thresholds.repeat(-(-height // side), -(-width // side))[:height, :width]
    return (levels + tiles[..., None]).clamp(0, 255).to(torch.uint8)


def _bayer(side: int) -> Tensor:
    """Return a threshold map (side, side) with values around 0.

    The map is from Bayer 1973, "An optimum method for two-level rendition".
    """
    places = torch.zeros(1, 1)
    while len(places) < side:
        rows = torch.cat([places * 4, places * 4 + 2], dim=1)
        places = torch.cat([rows, torch.cat([places * 4 + 3, places * 4 + 1], dim=1)])
    return (places + 0.5) / side**2 - 0.5


_LUMA = (0.299, 0.587, 0.114)
_RADIUS = 2
_SIGMA = 1.0
_SOBEL = (-1.0, 0.0, 1.0), (1.0, 2.0, 1.0)
_LEAST = 1e-6
_EIGHTH = torch.pi / 4
_DIRECTIONS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))
"""The step in rows and columns to the next pixel, for each direction of a gradient."""


def canny_edges(images: Images, *, low: float, high: float) -> Work[Mask]:
    """Return a mask of edges: gradients above `high`, and connected gradients above `low`.

    Other runs may proceed between two images. Raises EngineError for images that are too small to
    be smoothed.
    """
    height, width = images.shape[1:3]
    if min(height, width) <= _RADIUS:
        raise EngineError(f"An image of {width} x {height} pixels is too small for edges.")
    found: list[Mask] = []
    for image in images.split(1):
        ridges = _ridges((image[..., :COLOURS] * torch.tensor(_LUMA)).sum(-1)[:, None])
        found.append(_joined(ridges > low, ridges > high))
        yield YieldRequest()
    return torch.stack(found)


def _ridges(grey: Tensor) -> Tensor:
    """Return (height, width): the gradient where it is largest across an edge, and 0 elsewhere."""
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
    """Return the horizontal and the vertical gradient by Sobel's operator."""
    change, mean = map(torch.tensor, _SOBEL)
    padded = functional.pad(grey, (1,) * 4, mode="replicate")
    across = mean[:, None] * change
    return (
        functional.conv2d(padded, across[None, None]),
        functional.conv2d(padded, across.T[None, None]),
    )


def _is_largest(strength: Tensor, angle: Tensor) -> Tensor:
    """Return true where the strength is largest along the gradient, in one of 8 directions.

    Of two equal neighbours, as beside a straight edge, only the darker one counts.
    """
    direction = (angle / _EIGHTH).round().long() % len(_DIRECTIONS)
    padded = functional.pad(strength, (1,) * 4)
    height, width = strength.shape[2:]

    def beside(rows: int, columns: int) -> Tensor:
        return padded[..., 1 + rows : 1 + rows + height, 1 + columns : 1 + columns + width]

    found = torch.zeros_like(strength, dtype=torch.bool)
    for number, (rows, columns) in enumerate(_DIRECTIONS):
        is_peak = (strength >= beside(rows, columns)) & (strength > beside(-rows, -columns))
        found |= is_peak & (direction == number)
    return found


def _joined(weak: Tensor, strong: Tensor) -> Tensor:
    """Return 1 at weak positions that are connected to a strong position, also diagonally."""
    numbers, count = ndimage.label(weak.numpy(), structure=[[1] * 3] * 3)
    numbers = torch.from_numpy(numbers).long()
    keeps = torch.zeros(count + 1)
    keeps[numbers[strong]] = 1.0
    keeps[0] = 0.0
    return keeps[numbers]
