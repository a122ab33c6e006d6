"""Operations on latents.

Lengths are in pixels unless a name or a docstring contains "cells". A cell is one position of a
latent, which corresponds to 8 x 8 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.diffusion.images.compositing import ramp
from engine.diffusion.images.latents import (
    CHANNELS,
    PIXELS_PER_LATENT,
    Latent,
    empty_latent,
    repeated_to,
)
from engine.diffusion.images.resampling import proportional_size, resampled
from engine.errors import EngineError
from engine.graph.limits import Limits

_LEAST_CELLS = 8


def added(first: Latent, second: Latent, factor: float = 1.0) -> Latent:
    """Return the first latent plus `factor` times the second latent."""
    return replace(first, samples=first.samples + _fitted(first, second) * factor)


def interpolated(first: Latent, second: Latent, share: float) -> Latent:
    """Return the mean direction of two latents, with their mean length, for each cell.

    The channels of a cell are one vector. `share` is the weight of the first latent.
    """
    a, b = first.samples, _fitted(first, second)
    lengths = [each.norm(dim=1, keepdim=True) for each in (a, b)]
    units = [(each / length).nan_to_num() for each, length in zip((a, b), lengths, strict=True)]
    unit = units[0] * share + units[1] * (1 - share)
    unit = (unit / unit.norm(dim=1, keepdim=True)).nan_to_num()
    return replace(first, samples=unit * (lengths[0] * share + lengths[1] * (1 - share)))


def blended(first: Latent, second: Latent, share: float) -> Latent:
    """Return a weighted mean of both latents; `share` is the weight of the first latent."""
    other = second.samples.to(first.samples)
    if other.shape != first.samples.shape:
        height, width = first.samples.shape[2:]
        other = resampled(other, width, height, method="bicubic", crop="center")
    return replace(first, samples=first.samples * share + other * (1 - share))


def cut(latent: Latent, *, x: int, y: int, width: int, height: int) -> Latent:
    """Return the part of a latent that begins at `x`, `y`. All lengths are in cells.

    As in ComfyUI, the part begins at least 8 cells before the end of each side.
    """
    rows, columns = latent.samples.shape[2:]
    x, y = min(x, max(0, columns - _LEAST_CELLS)), min(y, max(0, rows - _LEAST_CELLS))
    return replace(latent, samples=latent.samples[..., y : y + height, x : x + width])


def joined(first: Latent, second: Latent) -> Latent:
    """Join both batches. The second latents are resized to the size of the first latents."""
    other = _resized(second.samples, first.samples).to(first.samples)
    draws = [each.batch_index or tuple(range(len(each.samples))) for each in (first, second)]
    samples = torch.cat([first.samples, other])
    return replace(first, samples=samples, batch_index=(*draws[0], *draws[1]))


def _fitted(first: Latent, second: Latent) -> Tensor:
    """Return the second latents, resized and repeated to the size and number of the first."""
    other = _resized(second.samples, first.samples)
    return repeated_to(other, len(first.samples)).to(first.samples)


def _resized(samples: Tensor, like: Tensor) -> Tensor:
    height, width = like.shape[2:]
    if samples.shape[2:] == like.shape[2:]:
        return samples
    return resampled(samples, width, height, method="bilinear", crop="center")


_LEAST_SIDE = 64


@dataclass(frozen=True, slots=True)
class LatentOperations:
    """Operations on latents. They raise TooLarge if the result would exceed `limits`."""

    limits: Limits

    def empty(
        self, width: int, height: int, batch_size: int, *, channels: int = CHANNELS
    ) -> Latent:
        self.limits.require_batch(batch_size, width=width, height=height)
        return empty_latent(width, height, batch_size, channels)

    def scaled(self, latent: Latent, width: int, height: int, *, method: str, crop: str) -> Latent:
        """Resize to `width` x `height`.

        If one side is 0, it is computed from the other in proportion. If both sides are 0, the
        latent is returned unchanged.
        """
        if width == height == 0:
            return latent
        # As in ComfyUI, a side below 64 becomes 64 before the other side is computed from it.
        width, height = (side and max(_LEAST_SIDE, side) for side in (width, height))
        width, height = proportional_size(width, height, of=latent.samples, least=_LEAST_SIDE)
        return self._to_cells(
            latent,
            width // PIXELS_PER_LATENT,
            height // PIXELS_PER_LATENT,
            method=method,
            crop=crop,
        )

    def scaled_by(self, latent: Latent, factor: float, *, method: str) -> Latent:
        height, width = latent.samples.shape[-2:]
        cells = (max(1, round(width * factor)), max(1, round(height * factor)))
        return self._to_cells(latent, *cells, method=method, crop="disabled")

    def cropped(self, latent: Latent, width: int, height: int) -> Latent:
        """Return the middle `width` x `height` pixels. A side that is shorter is not cropped."""
        samples = latent.samples
        for axis, side in ((2, height), (3, width)):
            cells = min(side // PIXELS_PER_LATENT, samples.shape[axis])
            samples = samples.narrow(axis, (samples.shape[axis] - cells) // 2, cells)
        return replace(latent, samples=samples)

    def repeated(self, latent: Latent, amount: int) -> Latent:
        """Repeat the batch. Each repetition gets noise of its own."""
        samples, mask, index = latent.samples, latent.noise_mask, latent.batch_index
        self._require(len(samples) * amount, samples.shape[-1], samples.shape[-2])
        if mask is not None and len(mask) > 1:
            mask = _cycled(mask, len(samples)).repeat(amount, 1, 1)
        if index is not None:
            draws = max(index) - min(index) + 1
            index = tuple(draw + n * draws for n in range(amount) for draw in index)
        return Latent(samples.repeat(amount, 1, 1, 1), mask, index)

    def joined(self, first: Latent, second: Latent) -> Latent:
        """Join both batches. The second latents are resized to the size of the first latents."""
        count = len(first.samples) + len(second.samples)
        self._require(count, first.samples.shape[-1], first.samples.shape[-2])
        return joined(first, second)

    def batch_slice(self, latent: Latent, start: int, length: int) -> Latent:
        """Return a part of the batch. Each latent keeps the noise that it has in the batch."""
        samples, mask = latent.samples, latent.noise_mask
        start = min(len(samples) - 1, start)
        part = slice(start, min(len(samples), start + length))
        if mask is not None and len(mask) > 1:
            mask = _cycled(mask, len(samples))[part]
        index = latent.batch_index or tuple(range(len(samples)))
        return Latent(samples[part], mask, index[part])

    def pasted(self, below: Latent, above: Latent, *, x: int, y: int, feather: int) -> Latent:
        """Paste `above` over `below` with its top left corner at `x`, `y` and soft inner edges."""
        x, y, feather = (length // PIXELS_PER_LATENT for length in (x, y, feather))
        target = below.samples.clone()
        window = target[..., y : y + above.samples.shape[-2], x : x + above.samples.shape[-1]]
        source = above.samples[..., : window.shape[-2], : window.shape[-1]].to(target.device)
        if len(source) not in {1, len(window)}:
            raise EngineError(
                f"A batch of {len(source)} latents can be pasted over a batch of 1 latent or of "
                f"the same size, but not over a batch of {len(window)}."
            )
        bottom, right = y + window.shape[-2], x + window.shape[-1]
        share = torch.outer(
            ramp(window.shape[-2], feather, first=y > 0, last=bottom < target.shape[-2]),
            ramp(window.shape[-1], feather, first=x > 0, last=right < target.shape[-1]),
        ).to(target.device)
        window.copy_(source * share + window * (1 - share))
        return replace(below, samples=target)

    def _to_cells(
        self, latent: Latent, width: int, height: int, *, method: str, crop: str
    ) -> Latent:
        samples = latent.samples
        self._require(len(samples), width, height)
        return replace(latent, samples=resampled(samples, width, height, method=method, crop=crop))

    def _require(self, count: int, cells_wide: int, cells_high: int) -> None:
        width, height = cells_wide * PIXELS_PER_LATENT, cells_high * PIXELS_PER_LATENT
        self.limits.require_batch(count, width=width, height=height)


def _cycled(masks: Tensor, count: int) -> Tensor:
    """Return at least `count` masks. Fewer masks are repeated from the first."""
    return masks[torch.arange(count) % len(masks)] if len(masks) < count else masks
