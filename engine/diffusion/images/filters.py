"""Filters of images."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from engine.batcher import Turn, Work
from engine.diffusion.images.latents import Images
from engine.diffusion.images.masks import VALUES_IN_A_TURN
from engine.errors import EngineError

_SPREAD = 512.0
"""What a threshold map spans with one colour; with more, as much less."""
_SHARPENING = 10.0
"""What a strength of 1 adds of the difference to the blurred image."""


def blurred(images: Images, radius: int, sigma: float) -> Work[Images]:
    """The images blurred by a Gauss function within `radius` pixels, reflected at the sides.

    The radius counts as a distance of 1 for `sigma`. Others have their turns meanwhile. Raises
    EngineError for a radius that is not below both sides.
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
        if done > VALUES_IN_A_TURN:
            yield Turn()
            done = 0
    return total


def sharpened(images: Images, radius: int, sigma: float, *, strength: float) -> Work[Images]:
    """The images, and so much more of what a blur takes from them (unsharp masking)."""
    if strength == 0:
        return images
    difference = images - (yield from blurred(images, radius, sigma))
    return (images + _SHARPENING * strength * difference).clamp(0, 1)


def quantized(images: Images, colours: int, *, dither: str) -> Work[Images]:
    """The images with at most so many colours, which are chosen for each of them.

    Others have their turns between two images. `dither` is "none", "floyd-steinberg" or "bayer-n"
    with the side of the matrix.
    """
    found: list[Tensor] = []
    for image in images:
        found.append(_quantized(image, colours, dither=dither))
        yield Turn()
    return torch.stack(found)


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
    """Levels (height, width, 3) with a threshold map added, whose values span `spread`."""
    height, width = levels.shape[:2]
    thresholds = _bayer(side) * spread + 0.5
    tiles = thresholds.repeat(-(-height // side), -(-width // side))[:height, :width]
    return (levels + tiles[..., None]).clamp(0, 255).to(torch.uint8)


def _bayer(side: int) -> Tensor:
    """(side, side): Bayer 1973, "An optimum method for two-level rendition", around 0."""
    places = torch.zeros(1, 1)
    while len(places) < side:
        rows = torch.cat([places * 4, places * 4 + 2], dim=1)
        places = torch.cat([rows, torch.cat([places * 4 + 3, places * 4 + 1], dim=1)])
    return (places + 0.5) / side**2 - 0.5
