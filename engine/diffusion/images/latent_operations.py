"""Operations on latents. Lengths are in pixels, as in the nodes, unless a name says cells.

A cell is one element of a latent; it stands for 8 x 8 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.diffusion.conditioning.feathering import ramp
from engine.diffusion.images.latent_arithmetic import joined
from engine.diffusion.images.latents import CHANNELS, PIXELS_PER_LATENT, Latent, empty_latent
from engine.diffusion.images.resampling import kept_ratio, resampled
from engine.errors import EngineError
from engine.graph.limits import Limits

_LEAST_SIDE = 64


@dataclass(frozen=True, slots=True)
class LatentOperations:
    """Make latents from latents; all raise TooLarge if the result would exceed `limits`."""

    limits: Limits

    def empty(
        self, width: int, height: int, batch_size: int, *, channels: int = CHANNELS
    ) -> Latent:
        """A latent of zeros."""
        self.limits.require_batch(batch_size, width=width, height=height)
        return empty_latent(width, height, batch_size, channels)

    def scaled(self, latent: Latent, width: int, height: int, *, method: str, crop: str) -> Latent:
        """Resize to `width` x `height`; if one is 0, in proportion; if both are, not at all."""
        if width == height == 0:
            return latent
        # As in ComfyUI, a side counts as at least 64 before the other is computed from it.
        width, height = (side and max(_LEAST_SIDE, side) for side in (width, height))
        width, height = kept_ratio(width, height, of=latent.samples, least=_LEAST_SIDE)
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
        """The middle `width` x `height` pixels; a side that is no longer than that stays."""
        samples = latent.samples
        for axis, side in ((2, height), (3, width)):
            cells = min(side // PIXELS_PER_LATENT, samples.shape[axis])
            samples = samples.narrow(axis, (samples.shape[axis] - cells) // 2, cells)
        return replace(latent, samples=samples)

    def repeated(self, latent: Latent, amount: int) -> Latent:
        """Repeat the batch. Each repeat gets noise of its own."""
        samples, mask, index = latent.samples, latent.noise_mask, latent.batch_index
        self._require(len(samples) * amount, samples.shape[-1], samples.shape[-2])
        if mask is not None and len(mask) > 1:
            mask = _cycled(mask, len(samples)).repeat(amount, 1, 1)
        if index is not None:
            draws = max(index) - min(index) + 1
            index = tuple(draw + n * draws for n in range(amount) for draw in index)
        return Latent(samples.repeat(amount, 1, 1, 1), mask, index)

    def joined(self, first: Latent, second: Latent) -> Latent:
        """One batch of both; the second are brought to the size of the first."""
        count = len(first.samples) + len(second.samples)
        self._require(count, first.samples.shape[-1], first.samples.shape[-2])
        return joined(first, second)

    def batch_slice(self, latent: Latent, start: int, length: int) -> Latent:
        """A part of the batch, which keeps the noise that it had in it."""
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
                f"A batch of {len(source)} latents goes over a batch of 1 or as many, "
                f"not over {len(window)}."
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
    """As many masks as latents; if there are fewer, they start again from the first."""
    return masks[torch.arange(count) % len(masks)] if len(masks) < count else masks
