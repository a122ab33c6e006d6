"""The noise of the start and of the steps. It is drawn on the CPU, so every device has the same.

A job's noise depends on its seed and its own shape alone, never on the jobs that share its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torchsde  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from engine.diffusion.images.latents import Latent
from engine.errors import TooLarge

_PATH_DIGITS = 6
_SEEDS = 2**64
_PARALLEL = 1e-3
_MOST_DRAWS, _MOST_DRAWN = 4096, 2**25
"""Draws before one that a row takes, and the values of all of them: a tenth of a second or two."""

NoiseSampler: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Gaussian noise of unit variance for the step from one sigma to the next."""


def shifted(seed: int, by: int) -> int:
    """The seed plus `by`; 0 follows the largest seed."""
    return (seed + by) % _SEEDS


def start_noise(latent: Latent, generator: torch.Generator) -> Tensor:
    """The noise at the start of sampling; each row takes the draw of its batch index.

    Raises TooLarge for an index that is too large. Batches of parts of batches may have any.
    """
    if latent.batch_index is None:
        return torch.randn(latent.samples.shape, generator=generator, dtype=torch.float32)
    shape = torch.Size((1, *latent.samples.shape[1:]))
    wanted, draws = set(latent.batch_index), {}
    count = max(wanted) + 1
    if count > _MOST_DRAWS or count * shape.numel() > _MOST_DRAWN:
        raise TooLarge(
            f"A latent of this batch is number {count:,} of those that were repeated: its noise is "
            "too far to be drawn. Take it from fewer batches one after the other."
        )
    for index in range(count):
        # One at a time: a draw of several rows gives other numbers unless 16 divides a row's size.
        draw = torch.randn(shape, generator=generator)
        if index in wanted:
            draws[index] = draw
    return torch.cat([draws[index] for index in latent.batch_index])


@dataclass(frozen=True, slots=True)
class Variation:
    """How the noise of a start differs from that of its seed, in the WebUI's way."""

    seed: int = 0
    strength: float = 0.0
    """How far it is towards the noise of `seed`, 0..1."""
    cells: tuple[int, int] | None = None
    """Height and width, in cells of a latent, of noise that is put into the middle; None: all."""


UNVARIED = Variation()


def varied(noise: Tensor, seed: int, variation: Variation) -> Tensor:
    """The noise (batch, channels, h, w) of `seed`, varied."""
    shape = torch.Size((*noise.shape[:2], *(variation.cells or noise.shape[2:])))
    middle = noise if shape == noise.shape else _drawn(shape, seed)
    if variation.strength:
        middle = _between(middle, _drawn(shape, variation.seed), variation.strength)
    return middle if shape == noise.shape else _with_middle(noise, middle)


def _drawn(shape: torch.Size, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def _between(start: Tensor, end: Tensor, share: float) -> Tensor:
    """On the arc from `start` to `end`: Shoemake 1985, column by column of each channel."""
    directions = [each / each.norm(dim=-2, keepdim=True) for each in (start, end)]
    cosine = (directions[0] * directions[1]).sum(dim=-2, keepdim=True)
    angle = cosine.clamp(-1, 1).acos()
    arc = (((1 - share) * angle).sin() * start + (share * angle).sin() * end) / angle.sin()
    # Between parallel columns there is no arc, as where they have one number each.
    return torch.where(angle.sin() > _PARALLEL, arc, start.lerp(end, share))


def _with_middle(noise: Tensor, middle: Tensor) -> Tensor:
    """The noise with its middle replaced, or with the middle of a `middle` that is larger."""
    found = noise.clone()
    place, source = found, middle
    for axis in (2, 3):
        offset = (noise.shape[axis] - middle.shape[axis]) // 2
        length = middle.shape[axis] + min(2 * offset, 0)
        place = place.narrow(axis, max(offset, 0), length)
        source = source.narrow(axis, max(-offset, 0), length)
    place.copy_(source)
    return found


def independent_noise(x: Tensor, seed: int) -> NoiseSampler:
    """Independent draws; the first equals the noise that sampling of that seed starts from."""
    return drawn_noise(x, torch.Generator().manual_seed(seed))


def scaled_noise(noise: NoiseSampler, factor: float) -> NoiseSampler:
    """The same noise, times `factor`."""
    if factor == 1.0:
        return noise
    return lambda sigma, sigma_next: noise(sigma, sigma_next) * factor


def drawn_noise(x: Tensor, generator: torch.Generator) -> NoiseSampler:
    """Independent draws, the next of `generator` each."""

    def draw(_sigma: Tensor, _sigma_next: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x.device)

    return draw


def brownian_noise(x: Tensor, sigmas: Tensor, seed: int) -> NoiseSampler:
    """Increments of one Brownian path over sigma: Li et al. 2020 (arXiv:2001.01328), section 4.

    The path depends on the seed and on the ends of `sigmas` alone, so that more steps follow the
    same path more closely.
    """
    sigma_min, sigma_max = _rounded(sigmas[sigmas > 0].min()), _rounded(sigmas.max())
    if sigma_min == sigma_max:
        return independent_noise(x, seed)
    origin = torch.zeros(x.shape, dtype=torch.float32)
    path = torchsde.BrownianTree(t0=sigma_min, w0=origin, t1=sigma_max, entropy=seed)

    def increment(sigma: Tensor, sigma_next: Tensor) -> Tensor:
        # A sigma within a step comes from exp and log, so it may be outside the path by an ulp.
        ends = (min(max(_rounded(s), sigma_min), sigma_max) for s in (sigma, sigma_next))
        low, high = sorted(ends)
        difference: Tensor = path(low, high)
        sign = -1 if sigma >= sigma_next else 1
        normal: Tensor = sign * difference / float(abs(sigma - sigma_next)) ** 0.5
        return normal.to(x.device)

    return increment


def _rounded(sigma: Tensor) -> float:
    """sigma in the precision of the path, which would warn about an end that it must round."""
    return round(float(sigma), _PATH_DIGITS)
