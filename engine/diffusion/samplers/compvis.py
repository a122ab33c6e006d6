"""Samplers that step along timesteps and end at the first timestep, not at a sigma of 0.

The returned latent has the variance-preserving scale for which these samplers are defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from engine.diffusion.samplers import uni_pc as data_prediction
from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling

_ADAMS_BASHFORTH = (
    (3 / 2, -1 / 2),
    (23 / 12, -16 / 12, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)


def ddim(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 0.0) -> Sampling:
    """DDIM (Song et al. 2020, arXiv:2010.02502, equations 12 and 16)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        x = _ddim_step(x0, (x - x0) / sigma, (sigma, sigma_next), noise_sampler, eta=eta)
    return _scaled(x, sigmas[-1])


def ddim_cfg_pp(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 0.0
) -> Sampling:
    """`ddim` with CFG++ (arXiv:2406.08070), which keeps the unconditional noise."""
    for sigma, sigma_next in pairwise(sigmas):
        x0, x0_uncond = yield x, sigma
        x = _ddim_step(x0, (x - x0_uncond) / sigma, (sigma, sigma_next), noise_sampler, eta=eta)
    return _scaled(x, sigmas[-1])


def plms(x: Tensor, sigmas: Tensor) -> Sampling:
    """PLMS (Liu et al. 2022, arXiv:2202.09778, equation 12). The first step is a step of Heun."""
    slopes: list[Tensor] = []
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        slopes = [(x - x0) / sigma, *slopes][: len(_ADAMS_BASHFORTH) + 1]
        if len(slopes) == 1:
            ahead = x + slopes[0] * (sigma_next - sigma)
            x0 = yield ahead, sigma_next
            slope = (slopes[0] + (ahead - x0) / sigma_next) / 2
        else:
            slope = _combined(_ADAMS_BASHFORTH[len(slopes) - 2], slopes)
        x = x + slope * (sigma_next - sigma)
    return _scaled(x, sigmas[-1])


def uni_pc(x: Tensor, sigmas: Tensor) -> Sampling:
    """UniPC with B_1(h) = h."""
    x = yield from data_prediction.uni_pc(x, sigmas)
    return _scaled(x, sigmas[-1])


def _ddim_step(
    x0: Tensor,
    eps: Tensor,
    step: tuple[Tensor, Tensor],
    noise_sampler: NoiseSampler,
    *,
    eta: float,
) -> Tensor:
    sigma, sigma_next = step
    kept, kept_next = 1 / (sigma**2 + 1), 1 / (sigma_next**2 + 1)
    std = eta * ((1 - kept_next) / (1 - kept) * (1 - kept / kept_next)).sqrt()
    std = std / kept_next.sqrt()
    noise = noise_sampler(sigma, sigma_next)
    return x0 + (sigma_next**2 - std**2).clamp(min=0).sqrt() * eps + std * noise


def _combined(weights: Sequence[float], slopes: Sequence[Tensor]) -> Tensor:
    return sum((w * slope for w, slope in zip(weights, slopes, strict=True)), slopes[0] * 0)


def _scaled(x: Tensor, sigma: Tensor) -> Tensor:
    return x / (sigma**2 + 1).sqrt()
