"""Samplers: each a generator that asks for the denoised latent and takes one step with it.

    x0 = yield x, sigma

`x` is (batch, channels, height, width), `sigma` a scalar, `x0` the model's estimate of the clean
latent. `sigmas` falls to 0; the return value is the latent at its end. The engine answers what many
samplers ask with one call of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import pairwise
from typing import TypeAlias

from torch import Tensor

Sampling: TypeAlias = Generator[tuple[Tensor, Tensor], Tensor, Tensor]
Sampler: TypeAlias = Callable[[Tensor, Tensor], Sampling]


def euler(x: Tensor, sigmas: Tensor) -> Sampling:
    """Euler's method: Karras et al. 2022 (arXiv:2206.00364), algorithm 2 without churn."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        x = x + (x - x0) / sigma * (sigma_next - sigma)
    return x


def dpmpp_2m(x: Tensor, sigmas: Tensor) -> Sampling:
    """DPM-Solver++(2M): Lu et al. 2022 (arXiv:2211.01095), algorithm 2; lambda = -log sigma."""
    previous: Tensor | None = None
    h_previous: Tensor | None = None
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        h = sigma.log() - sigma_next.log()
        target = x0
        if previous is not None and h_previous is not None and sigma_next > 0:
            r = h_previous / h
            target = (1 + 1 / (2 * r)) * x0 - 1 / (2 * r) * previous
        x = (sigma_next / sigma) * x - (-h).expm1() * target
        previous, h_previous = x0, h
    return x


SAMPLERS: dict[str, Sampler] = {"euler": euler, "dpmpp_2m": dpmpp_2m}
