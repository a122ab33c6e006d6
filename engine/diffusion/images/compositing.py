"""Pastes and blends images and latents, with soft edges."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.latents import COLOURS, Images, Mask, repeated_to, with_channels
from engine.diffusion.images.resampling import resampled
from engine.errors import EngineError


def pasted(
    below: Tensor, above: Tensor, *, x: int, y: int, mask: Mask | None, resized: bool
) -> Tensor:
    """Return `below` with `above` pasted over it at `x`, `y`, weighted by the mask.

    Both images are (batch, channels, height, width). The mask is resized to the size of `above`.
    """
    if resized:
        above = functional.interpolate(above, size=below.shape[-2:], mode="bilinear")
    above = repeated_to(above, len(below)).to(below)
    result = below.clone()
    window = result[..., y : y + above.shape[-2], x : x + above.shape[-1]]
    source = above[..., : window.shape[-2], : window.shape[-1]]
    if not window.numel():
        return result
    if mask is None:
        window.copy_(source)
        return result
    planes = mask.reshape(-1, 1, *mask.shape[-2:])[: len(below)]
    share = functional.interpolate(planes, size=above.shape[-2:], mode="bilinear")
    share = repeated_to(share, len(below))[..., : window.shape[-2], : window.shape[-1]].to(below)
    window.copy_(source * share + window * (1.0 - share))
    return result


def blended(first: Images, second: Images, *, factor: float, mode: str) -> Images:
    """Mix the first images with the result of a blending mode; `factor` is the result's weight."""
    if first.shape[1:3] != second.shape[1:3]:
        height, width = first.shape[1:3]
        planes = second.movedim(-1, 1)
        planes = resampled(planes, width, height, method="bicubic", crop="center")
        second = planes.movedim(1, -1)
    if len(first) != len(second) and 1 not in {len(first), len(second)}:
        raise EngineError(f"{len(first)} images cannot be blended with {len(second)}.")
    second = with_channels(second, first.shape[-1])
    found = (first * (1 - factor) + _mode(first, second, mode) * factor).clamp(0, 1)
    opacity = first[..., COLOURS:].expand(len(found), -1, -1, -1)
    return torch.cat((found[..., :COLOURS], opacity), dim=-1)


def _mode(a: Images, b: Images, mode: str) -> Images:
    """Blend each pair of values (W3C, Compositing and Blending, section 9.1)."""
    match mode:
        case "multiply":
            return a * b
        case "screen":
            return 1 - (1 - a) * (1 - b)
        case "overlay":
            return torch.where(a <= 0.5, 2 * a * b, 1 - 2 * (1 - a) * (1 - b))
        case "soft_light":
            lit = torch.where(a <= 0.25, ((16 * a - 12) * a + 4) * a, a.clamp(min=0).sqrt())
            darker, lighter = a - (1 - 2 * b) * a * (1 - a), a + (2 * b - 1) * (lit - a)
            return torch.where(b <= 0.5, darker, lighter)
        case "difference":
            return a - b
        case _:
            return b


def ramp(length: int, feather: int, *, first: bool, last: bool) -> Tensor:
    """Return weights (length,) of 1 that rise over `feather` positions from each soft end.

    `first` and `last` specify which ends are soft.
    """
    weights = torch.ones(length)
    rise = (torch.arange(1, feather + 1) / max(1, feather))[:length]
    if first:
        weights[: len(rise)] *= rise
    if last:
        weights[length - len(rise) :] *= rise.flip(0)
    return weights
