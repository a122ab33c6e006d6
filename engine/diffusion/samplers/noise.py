"""The noise of the start and of the steps. It is drawn on the CPU, so every device has the same.

A job's noise depends on its seed and its own shape alone, never on the jobs that share its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torchsde  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from engine.diffusion.images.latents import Latent, noise_like

_PATH_DIGITS = 6
_SEEDS = 2**64

NoiseSampler: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Gaussian noise of unit variance for the step from one sigma to the next."""


def shifted(seed: int, by: int) -> int:
    """The seed plus `by`; 0 follows the largest seed."""
    return (seed + by) % _SEEDS


def start_noise(latent: Latent, seed: int) -> Tensor:
    """The noise at the start of sampling; each row takes the draw of its batch index."""
    if latent.batch_index is None:
        return noise_like(latent.samples, seed)
    generator = torch.Generator().manual_seed(seed)
    shape = (1, *latent.samples.shape[1:])
    wanted, draws = set(latent.batch_index), {}
    for index in range(max(wanted) + 1):
        # One at a time: a draw of several rows gives other numbers unless 16 divides a row's size.
        draw = torch.randn(shape, generator=generator)
        if index in wanted:
            draws[index] = draw
    return torch.cat([draws[index] for index in latent.batch_index])


def independent_noise(x: Tensor, seed: int) -> NoiseSampler:
    """Independent draws; the first equals the noise that sampling of that seed starts from."""
    generator = torch.Generator().manual_seed(seed)

    def draw(_sigma: Tensor, _sigma_next: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x.device)

    return draw


def brownian_noise(x: Tensor, sigmas: Tensor, seed: int) -> NoiseSampler:
    """Increments of one Brownian path over sigma: Li et al. 2020 (arXiv:2001.01328), section 4.

    The path depends on the seed alone, so that more steps follow the same path more closely.
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
