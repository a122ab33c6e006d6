"""The noise of the start and of the steps; always drawn on the CPU, for every device the same.

A job's noise depends on its seed and its own shape alone, never on what it shares a call with.
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

Noise: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Normal noise for the step from one sigma down to the other."""


def shifted(seed: int, by: int) -> int:
    """Another seed, `by` further; the largest is followed by 0."""
    return (seed + by) % _SEEDS


def start_noise(latent: Latent, seed: int) -> Tensor:
    """What sampling starts from: a row takes the draw that its batch index says."""
    if latent.batch_index is None:
        return noise_like(latent.samples, seed)
    generator = torch.Generator().manual_seed(seed)
    shape = (1, *latent.samples.shape[1:])
    # One by one: a draw of several has other numbers where a row's size is no multiple of 16.
    draws = [torch.randn(shape, generator=generator) for _ in range(max(latent.batch_index) + 1)]
    return torch.cat([draws[index] for index in latent.batch_index])


def fresh(x: Tensor, seed: int) -> Noise:
    """Independent draws; the first equals the noise that sampling of that seed starts from."""
    generator = torch.Generator().manual_seed(seed)

    def draw(_sigma: Tensor, _sigma_next: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x.device)

    return draw


def brownian(x: Tensor, sigmas: Tensor, seed: int) -> Noise:
    """Increments of one Brownian path over sigma: Li et al. 2020 (arXiv:2001.01328), section 4.

    The path depends on the seed alone, so that more steps follow the same path more closely.
    """
    least, most = _rounded(sigmas[sigmas > 0].min()), _rounded(sigmas.max())
    if least == most:
        return fresh(x, seed)
    origin = torch.zeros(x.shape, dtype=torch.float32)
    path = torchsde.BrownianTree(t0=least, w0=origin, t1=most, entropy=seed)

    def increment(sigma: Tensor, sigma_next: Tensor) -> Tensor:
        # The middle of a step comes by way of exp and log, which may leave the path by an ulp.
        low, high = sorted(min(max(_rounded(s), least), most) for s in (sigma, sigma_next))
        moved: Tensor = path(low, high)
        sign = -1 if sigma >= sigma_next else 1
        normal: Tensor = sign * moved / float(abs(sigma - sigma_next)) ** 0.5
        return normal.to(x.device)

    return increment


def _rounded(sigma: Tensor) -> float:
    """To where the path looks no closer; it warns of ends that it has rounded itself."""
    return round(float(sigma), _PATH_DIGITS)
