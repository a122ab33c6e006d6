"""Samplers that add independent noise in each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling

_MOST_CHURN = math.sqrt(2) - 1


@dataclass(frozen=True, slots=True)
class Churn:
    """The settings of the noise that is added before each step: S_churn, S_tmin, S_tmax."""

    amount: float = 0.0
    sigma_min: float = 0.0
    sigma_max: float = math.inf


NO_CHURN = Churn()


def churned(
    sampler: Callable[[Tensor, Tensor], Sampling],
    x: Tensor,
    sigmas: Tensor,
    noise_sampler: NoiseSampler,
    *,
    churn: Churn,
) -> Sampling:
    """Run each step of `sampler` from a higher sigma (arXiv:2206.00364, algorithm 2)."""
    gamma = min(churn.amount / (len(sigmas) - 1), _MOST_CHURN)
    for sigma, sigma_next in pairwise(sigmas):
        noise = noise_sampler(sigma, sigma)
        start = sigma
        if churn.sigma_min <= sigma <= churn.sigma_max:
            start = sigma * (1 + gamma)
            x = x + noise * (start**2 - sigma**2).sqrt()
        x = yield from sampler(x, torch.stack([start, sigma_next]))
    return x


def ancestral_step(sigma: Tensor, sigma_next: Tensor, eta: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return sigma_down and sigma_up for an ancestral step.

    The step denoises to sigma_down. Noise of sigma_up is then added, which raises the noise to
    `sigma_next`. This is the posterior of Ho et al. 2020 (arXiv:2006.11239), equation 7, in
    variance-exploding form. `eta` is the share of the posterior's noise that is added.
    """
    sigma_up = (sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2).sqrt()
    sigma_up = (eta * sigma_up).minimum(sigma_next)
    return (sigma_next**2 - sigma_up**2).sqrt(), sigma_up


def euler_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """Ancestral sampling with Euler steps (Song et al. 2021, arXiv:2011.13456, appendix F)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        x = x + (x - x0) / sigma * (sigma_down - sigma)
        if sigma_next > 0:
            x = x + noise_sampler(sigma, sigma_next) * sigma_up
    return x


def euler_ancestral_cfg_pp(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """`euler_cfg_pp` (arXiv:2406.08070) with ancestral steps."""
    for sigma, sigma_next in pairwise(sigmas):
        x0, x0_uncond = yield x, sigma
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next)
        x = x0 + (x - x0_uncond) / sigma * sigma_down
        if sigma_next > 0:
            x = x + noise_sampler(sigma, sigma_next) * sigma_up
    return x


def dpm_2_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """`dpm_2` (arXiv:2206.00927) with ancestral steps."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        d = (x - x0) / sigma
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        if sigma_down > 0:
            sigma_mid = sigma.log().lerp(sigma_down.log(), 0.5).exp()
            x_mid = x + d * (sigma_mid - sigma)
            x0 = yield x_mid, sigma_mid
            d = (x_mid - x0) / sigma_mid
        x = x + d * (sigma_down - sigma)
        if sigma_next > 0:
            x = x + noise_sampler(sigma, sigma_next) * sigma_up
    return x


def dpmpp_2s_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """DPM-Solver++(2S), r = 1/2, with ancestral steps (arXiv:2211.01095, algorithm 1)."""
    return (yield from _dpmpp_2s_ancestral(x, sigmas, noise_sampler, eta=eta))


def dpmpp_2s_ancestral_cfg_pp(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """`dpmpp_2s_ancestral` with CFG++ (arXiv:2406.08070), which keeps the unconditional noise."""
    return (yield from _dpmpp_2s_ancestral(x, sigmas, noise_sampler, cfg_pp=True))


def _dpmpp_2s_ancestral(
    x: Tensor,
    sigmas: Tensor,
    noise_sampler: NoiseSampler,
    *,
    eta: float = 1.0,
    cfg_pp: bool = False,
) -> Sampling:
    for sigma, sigma_next in pairwise(sigmas):
        denoised = yield x, sigma
        x0, x0_uncond = denoised if cfg_pp else (denoised, denoised)
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        if sigma_down > 0:
            h = sigma.log() - sigma_down.log()
            sigma_mid = (sigma.log() - h / 2).exp()
            x_mid = sigma_mid / sigma * (x + (x0 - x0_uncond)) - (-h / 2).expm1() * x0
            denoised = yield x_mid, sigma_mid
            x0_mid, x0_uncond = denoised if cfg_pp else (denoised, x0)
            # With CFG++, x0_uncond is now the unconditional x0 of the second call, as in ComfyUI.
            # Without CFG++, x0_uncond is x0 of the first call.
            x = sigma_down / sigma * (x + (x0 - x0_uncond)) - (-h).expm1() * x0_mid
        else:
            x = x0
        if sigma_next > 0:
            x = x + noise_sampler(sigma, sigma_next) * sigma_up
    return x


def lcm(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """Multistep consistency sampling (Luo et al. 2023, arXiv:2310.04378, algorithm 3)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        x = x0
        if sigma_next > 0:
            x = x + sigma_next * noise_sampler(sigma, sigma_next)
    return x


def ddpm(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """DDPM (Ho et al. 2020, arXiv:2006.11239, algorithm 2) with the variance of the posterior."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        alpha_bar, alpha_bar_next = 1 / (sigma**2 + 1), 1 / (sigma_next**2 + 1)
        alpha = alpha_bar / alpha_bar_next
        eps = (x - x0) / sigma
        x_vp = x * alpha_bar.sqrt()
        mean = (x_vp - (1 - alpha) * eps / (1 - alpha_bar).sqrt()) / alpha.sqrt()
        if sigma_next > 0:
            std = ((1 - alpha) * (1 - alpha_bar_next) / (1 - alpha_bar)).sqrt()
            mean = mean + std * noise_sampler(sigma, sigma_next)
        x = mean / alpha_bar_next.sqrt()
    return x
