"""The noise at the start of sampling and in its steps.

The noise of a job depends only on its seed, its shape and its source, not on other jobs in the same
calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from engine.diffusion.host_copies import copied
from engine.diffusion.images.latents import Latent
from engine.diffusion.samplers.brownian import DIGITS, BrownianPath
from engine.diffusion.samplers.noise_sources import Randn, SeededRandn, cpu_randn
from engine.errors import TooLarge

_SEEDS = 2**64
_PARALLEL = 1e-3
_MOST_DRAWS, _MOST_DRAWN = 4096, 2**25
"""The largest number of draws for the noise of a batch, and the largest number of values in these
draws. Drawing this many values takes 0.1 to 0.2 seconds.
"""

NoiseSampler: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A function that returns Gaussian noise of unit variance for the step between two sigmas."""


def shifted_seed(seed: int, by: int) -> int:
    """Return the seed plus `by`. The largest seed plus 1 is 0."""
    return (seed + by) % _SEEDS


def start_noise(latent: Latent, draw: Randn) -> Tensor:
    """Return the noise at the start of sampling. Each latent gets the draw of its batch index.

    Raises TooLarge if an index is too large. A batch made from parts of other batches can have
    indices of any size.
    """
    if latent.batch_index is None:
        return draw(latent.samples.shape)
    shape = torch.Size((1, *latent.samples.shape[1:]))
    wanted, drawn = set(latent.batch_index), {}
    count = max(wanted) + 1
    if count > _MOST_DRAWS or count * shape.numel() > _MOST_DRAWN:
        raise TooLarge(
            f"A latent of this batch is the repeated latent number {count:,}, and its noise would "
            "take too long to draw. Take the latent from fewer batches, one after the other."
        )
    for index in range(count):
        # Latents are drawn one at a time. If 16 does not divide the size of a latent, one draw of
        # several latents gives different numbers.
        noise = draw(shape)
        if index in wanted:
            drawn[index] = noise
    return torch.cat([drawn[index] for index in latent.batch_index])


@dataclass(frozen=True, slots=True)
class Variation:
    """A variation of the noise at the start, as in the WebUI."""

    seed: int = 0
    strength: float = 0.0
    """The position (0..1) between the noise of the original seed and the noise of `seed`."""
    cells: tuple[int, int] | None = None
    """The height and width, in latent cells, for which noise is drawn. That noise replaces the
    middle of the noise at the start. None: the size of the latent.
    """


UNVARIED = Variation()


def varied(
    noise: Tensor, seed: int, variation: Variation, draws: SeededRandn = cpu_randn
) -> Tensor:
    """Apply a variation to the noise (batch, channels, h, w) of `seed`."""
    shape = torch.Size((*noise.shape[:2], *(variation.cells or noise.shape[2:])))
    middle = noise if shape == noise.shape else draws(seed)(shape)
    if variation.strength:
        middle = _between(middle, draws(variation.seed)(shape), variation.strength)
    return middle if shape == noise.shape else _with_middle(noise, middle)


def _between(start: Tensor, end: Tensor, share: float) -> Tensor:
    """Interpolate on the arc from `start` to `end` for each column (Shoemake 1985)."""
    directions = [each / each.norm(dim=-2, keepdim=True) for each in (start, end)]
    cosine = (directions[0] * directions[1]).sum(dim=-2, keepdim=True)
    angle = cosine.clamp(-1, 1).acos()
    arc = (((1 - share) * angle).sin() * start + (share * angle).sin() * end) / angle.sin()
    # There is no arc between parallel columns, for example between columns of one number.
    return torch.where(angle.sin() > _PARALLEL, arc, start.lerp(end, share))


def _with_middle(noise: Tensor, middle: Tensor) -> Tensor:
    """Replace the middle of the noise by `middle`. A longer side of `middle` is cropped."""
    found = noise.clone()
    target, source = found, middle
    for axis in (2, 3):
        offset = (noise.shape[axis] - middle.shape[axis]) // 2
        length = middle.shape[axis] + min(2 * offset, 0)
        target = target.narrow(axis, max(offset, 0), length)
        source = source.narrow(axis, max(-offset, 0), length)
    target.copy_(source)
    return found


def independent_noise(x: Tensor, seed: int) -> NoiseSampler:
    """Return a function with independent draws. The first draw equals the start noise of `seed`."""
    return drawn_noise(x, cpu_randn(seed))


def scaled_noise(noise: NoiseSampler, factor: float) -> NoiseSampler:
    if factor == 1.0:
        return noise
    return lambda sigma, sigma_next: noise(sigma, sigma_next) * factor


def drawn_noise(x: Tensor, draw: Randn) -> NoiseSampler:
    """Return a function whose noise is the next draw."""
    return lambda _sigma, _sigma_next: copied(draw(x.shape), x.device)


def brownian_noise(
    x: Tensor, sigmas: Tensor, seed: int, draws: SeededRandn = cpu_randn
) -> NoiseSampler:
    """Return the increments of one Brownian path over sigma.

    The path depends only on the seed and on the ends of `sigmas`, so more steps follow the same
    path more closely.
    """
    sigma_min, sigma_max = _rounded(sigmas[sigmas > 0].min()), _rounded(sigmas.max())
    if sigma_min == sigma_max:
        return drawn_noise(x, draws(seed))
    path = BrownianPath(sigma_min, sigma_max, seed, lambda key: draws(key)(x.shape))

    def increment(sigma: Tensor, sigma_next: Tensor) -> Tensor:
        # A sigma within a step is computed by exp and log, so it can be outside the path.
        ends = (min(max(_rounded(s), sigma_min), sigma_max) for s in (sigma, sigma_next))
        low, high = sorted(ends)
        sign = -1 if sigma >= sigma_next else 1
        normal: Tensor = sign * path.change(low, high) / float(abs(sigma - sigma_next)) ** 0.5
        return copied(normal, x.device)

    return increment


def _rounded(sigma: Tensor) -> float:
    """Round sigma to the precision of the path."""
    return round(float(sigma), DIGITS)
