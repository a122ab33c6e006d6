"""Deterministic samplers that use no past steps.

All samplers of this package are generators, so that one model call can serve many samplers. A
sampler yields x and sigma, gets x0, and makes a step with x0:

    x0 = yield x, sigma

`x` is (batch, channels, height, width), `sigma` is a scalar, and `x0` is the model's estimate of
the clean latent. CFG++ samplers get (2, batch, ...): x0 and the unconditional x0. The return value
is the latent at the last of the `sigmas`.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import TypeAlias

from torch import Tensor

Sampling: TypeAlias = Generator[tuple[Tensor, Tensor], Tensor, Tensor]


def euler(x: Tensor, sigmas: Tensor) -> Sampling:
    """Euler's method (Karras et al. 2022, arXiv:2206.00364, algorithm 2 without churn)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        x = x + (x - x0) / sigma * (sigma_next - sigma)
    return x


def ddim(x: Tensor, sigmas: Tensor) -> Sampling:
    """DDIM, which is Euler's method in sigma (Song et al. 2020, arXiv:2010.02502, equation 14)."""
    return (yield from euler(x, sigmas))


def euler_cfg_pp(x: Tensor, sigmas: Tensor) -> Sampling:
    """CFG++ (Chung et al. 2024, arXiv:2406.08070, algorithm 2) with the unconditional noise."""
    for sigma, sigma_next in pairwise(sigmas):
        x0, x0_uncond = yield x, sigma
        x = x0 + (x - x0_uncond) / sigma * sigma_next
    return x


def heun(x: Tensor, sigmas: Tensor) -> Sampling:
    """Heun's method (Karras et al. 2022, arXiv:2206.00364, algorithm 1)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        d = (x - x0) / sigma
        x_next = x + d * (sigma_next - sigma)
        if sigma_next > 0:
            x0 = yield x_next, sigma_next
            d = (d + (x_next - x0) / sigma_next) / 2
            x_next = x + d * (sigma_next - sigma)
        x = x_next
    return x


def heunpp2(x: Tensor, sigmas: Tensor) -> Sampling:
    """Heun's method with the slopes at up to three sigmas, weighted by their sigmas.

    The model is never called at the last sigma. There is no paper; the method is from its author's
    program (github.com/Carzit/sd-webui-sampler-heunpp).
    """
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        slopes: list[Tensor] = []
        ahead = sigmas[i : min(i + 3, len(sigmas) - 1)]
        x_ahead = x
        for j, s in enumerate(ahead):
            x0 = yield x_ahead, s
            slopes.append((x_ahead - x0) / s)
            if j + 1 < len(ahead):
                x_ahead = x_ahead + slopes[-1] * (ahead[j + 1] - s)
        weights = ahead[1:] / (len(ahead) * sigmas[0])
        d = slopes[0] * (1 - weights.sum())
        for weight, slope in zip(weights, slopes[1:], strict=True):
            d = d + weight * slope
        x = x + d * (sigma_next - sigma)
    return x


def dpm_2(x: Tensor, sigmas: Tensor) -> Sampling:
    """DPM-Solver-2 (Lu et al. 2022, arXiv:2206.00927) with the midpoint in log sigma."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        d = (x - x0) / sigma
        if sigma_next > 0:
            sigma_mid = sigma.log().lerp(sigma_next.log(), 0.5).exp()
            x_mid = x + d * (sigma_mid - sigma)
            x0 = yield x_mid, sigma_mid
            d = (x_mid - x0) / sigma_mid
        x = x + d * (sigma_next - sigma)
    return x
