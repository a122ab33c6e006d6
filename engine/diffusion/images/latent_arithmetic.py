"""Latents made of several others."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from engine.diffusion.images.compositing import repeated_to
from engine.diffusion.images.latents import Latent
from engine.diffusion.images.resampling import resampled

_LEAST_CELLS = 8


def added(first: Latent, second: Latent, factor: float = 1.0) -> Latent:
    """The first, and so much of the second."""
    return replace(first, samples=first.samples + _fitted(first, second) * factor)


def interpolated(first: Latent, second: Latent, share: float) -> Latent:
    """The mean of their directions over the channels, and of their lengths."""
    a, b = first.samples, _fitted(first, second)
    lengths = [each.norm(dim=1, keepdim=True) for each in (a, b)]
    ways = [(each / length).nan_to_num() for each, length in zip((a, b), lengths, strict=True)]
    way = ways[0] * share + ways[1] * (1 - share)
    way = (way / way.norm(dim=1, keepdim=True)).nan_to_num()
    return replace(first, samples=way * (lengths[0] * share + lengths[1] * (1 - share)))


def blended(first: Latent, second: Latent, share: float) -> Latent:
    """So much of the first, and the rest of the second."""
    other = second.samples.to(first.samples)
    if other.shape != first.samples.shape:
        height, width = first.samples.shape[2:]
        other = resampled(other, width, height, method="bicubic", crop="center")
    return replace(first, samples=first.samples * share + other * (1 - share))


def cut(latent: Latent, *, x: int, y: int, width: int, height: int) -> Latent:
    """The part from `x`, `y` on, all in cells; at least the last 8 of a side, as in ComfyUI."""
    rows, columns = latent.samples.shape[2:]
    x, y = min(x, max(0, columns - _LEAST_CELLS)), min(y, max(0, rows - _LEAST_CELLS))
    return replace(latent, samples=latent.samples[..., y : y + height, x : x + width])


def joined(first: Latent, second: Latent) -> Latent:
    """One batch of both; the second are brought to the size of the first."""
    other = _resized(second.samples, first.samples).to(first.samples)
    draws = [each.batch_index or tuple(range(len(each.samples))) for each in (first, second)]
    samples = torch.cat([first.samples, other])
    return replace(first, samples=samples, batch_index=(*draws[0], *draws[1]))


def _fitted(first: Latent, second: Latent) -> Tensor:
    """The second in size and number of the first."""
    other = _resized(second.samples, first.samples)
    return repeated_to(other, len(first.samples)).to(first.samples)


def _resized(samples: Tensor, like: Tensor) -> Tensor:
    height, width = like.shape[2:]
    if samples.shape[2:] == like.shape[2:]:
        return samples
    return resampled(samples, width, height, method="bilinear", crop="center")
