"""Samplers that add fresh noise after each step: reverse diffusion as a Markov chain."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

from engine.diffusion.samplers.noise import Noise
from engine.diffusion.samplers.runge_kutta import Sampling


def down_and_up(sigma: Tensor, sigma_next: Tensor) -> tuple[Tensor, Tensor]:
    """How far to denoise, and how much noise then leads to `sigma_next`.

    The posterior of Ho et al. 2020 (arXiv:2006.11239), equation 7, for a variance that explodes.
    """
    up = (sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2).sqrt().minimum(sigma_next)
    return (sigma_next**2 - up**2).sqrt(), up


def euler_ancestral(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """Ancestral sampling: Song et al. 2021 (arXiv:2011.13456), appendix F, in steps of Euler."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        down, up = down_and_up(sigma, sigma_next)
        x = x + (x - x0) / sigma * (down - sigma)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * up
    return x


def euler_ancestral_cfg_pp(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """`euler_cfg_pp` (arXiv:2406.08070) down to the level that ancestral sampling asks for."""
    for sigma, sigma_next in pairwise(sigmas):
        x0, x0_uncond = yield x, sigma
        down, up = down_and_up(sigma, sigma_next)
        x = x0 + (x - x0_uncond) / sigma * down
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * up
    return x


def dpm_2_ancestral(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """`dpm_2` (arXiv:2206.00927) down to the level that ancestral sampling asks for."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        d = (x - x0) / sigma
        down, up = down_and_up(sigma, sigma_next)
        if down > 0:
            middle = sigma.log().lerp(down.log(), 0.5).exp()
            x_middle = x + d * (middle - sigma)
            x0 = yield x_middle, middle
            d = (x_middle - x0) / middle
        x = x + d * (down - sigma)
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * up
    return x


def dpmpp_2s_ancestral(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """DPM-Solver++(2S): Lu et al. 2022 (arXiv:2211.01095), algorithm 1, r = 1/2, ancestral."""
    return (yield from _dpmpp_2s_ancestral(x, sigmas, noise, cfg_pp=False))


def dpmpp_2s_ancestral_cfg_pp(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """`dpmpp_2s_ancestral` with CFG++ (arXiv:2406.08070): x keeps the unconditional noise."""
    return (yield from _dpmpp_2s_ancestral(x, sigmas, noise, cfg_pp=True))


def _dpmpp_2s_ancestral(x: Tensor, sigmas: Tensor, noise: Noise, *, cfg_pp: bool) -> Sampling:
    for sigma, sigma_next in pairwise(sigmas):
        denoised = yield x, sigma
        x0, x0_uncond = denoised if cfg_pp else (denoised, denoised)
        down, up = down_and_up(sigma, sigma_next)
        if down > 0:
            h = sigma.log() - down.log()
            middle = (sigma.log() - h / 2).exp()
            x_middle = middle / sigma * (x + (x0 - x0_uncond)) - (-h / 2).expm1() * x0
            denoised = yield x_middle, middle
            x0_middle, x0_uncond = denoised if cfg_pp else (denoised, x0)
            # ComfyUI takes the newer unconditional x0 here, too.
            x = down / sigma * (x + (x0 - x0_uncond)) - (-h).expm1() * x0_middle
        else:
            x = x0
        if sigma_next > 0:
            x = x + noise(sigma, sigma_next) * up
    return x


def lcm(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """Multistep consistency sampling: Luo et al. 2023 (arXiv:2310.04378), algorithm 3."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        x = x0
        if sigma_next > 0:
            x = x + sigma_next * noise(sigma, sigma_next)
    return x


def ddpm(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """DDPM: Ho et al. 2020 (arXiv:2006.11239), algorithm 2 with the posterior's own variance."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        kept, kept_next = 1 / (sigma**2 + 1), 1 / (sigma_next**2 + 1)
        alpha = kept / kept_next
        eps = (x - x0) / sigma
        preserved = x * kept.sqrt()
        mean = (preserved - (1 - alpha) * eps / (1 - kept).sqrt()) / alpha.sqrt()
        if sigma_next > 0:
            deviation = ((1 - alpha) * (1 - kept_next) / (1 - kept)).sqrt()
            mean = mean + deviation * noise(sigma, sigma_next)
        x = mean / kept_next.sqrt()
    return x
