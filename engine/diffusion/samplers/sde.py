"""Samplers that solve the reverse SDE.

lambda is -log sigma, and h is the size of a step in lambda.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from engine.diffusion.samplers.ancestral import ancestral_step
from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling

_ER_POINTS = 200


def dpmpp_sde(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """SDE-DPM-Solver++ in single steps, r = 1/2 (Lu et al. 2022, arXiv:2211.01095, section 5)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        h = sigma.log() - sigma_next.log()
        sigma_mid = (sigma.log() - h / 2).exp()
        sigma_down, sigma_up = ancestral_step(sigma, sigma_mid, eta)
        x_mid = sigma_down / sigma * x + (1 - sigma_down / sigma) * x0
        x_mid = x_mid + sigma_up * noise_sampler(sigma, sigma_mid)
        x0 = yield x_mid, sigma_mid
        sigma_down, sigma_up = ancestral_step(sigma, sigma_next, eta)
        x = sigma_down / sigma * x + (1 - sigma_down / sigma) * x0
        x = x + sigma_up * noise_sampler(sigma, sigma_next)
    return x


def dpmpp_2m_sde(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """SDE-DPM-Solver++(2M) with the midpoint rule (Lu et al. 2022, arXiv:2211.01095, section 5)."""
    return (yield from _dpmpp_2m_sde(x, sigmas, noise_sampler, eta=eta, by_midpoint=True))


def dpmpp_2m_sde_heun(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """Like `dpmpp_2m_sde`, but with the exact integral of the slope."""
    return (yield from _dpmpp_2m_sde(x, sigmas, noise_sampler, eta=eta, by_midpoint=False))


def _dpmpp_2m_sde(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float, by_midpoint: bool
) -> Sampling:
    previous: Tensor | None = None
    h_previous: Tensor | None = None
    rate = 1 + eta
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        h = sigma.log() - sigma_next.log()
        x = sigma_next / sigma * (-eta * h).exp() * x - (-rate * h).expm1() * x0
        if previous is not None and h_previous is not None:
            weight = -(-rate * h).expm1() / 2 if by_midpoint else _phi_2(rate * h)
            x = x + weight * h / h_previous * (x0 - previous)
        x = x + sigma_next * _noise_std(eta * h) * noise_sampler(sigma, sigma_next)
        previous, h_previous = x0, h
    return x


def dpmpp_3m_sde(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """SDE-DPM-Solver++(3M): the method of Lu et al. 2022 (arXiv:2211.01095) with three steps."""
    past: list[tuple[Tensor, Tensor]] = []
    rate = 1 + eta
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        h = sigma.log() - sigma_next.log()
        x = (-rate * h).exp() * x - (-rate * h).expm1() * x0
        phi_2 = _phi_2(rate * h)
        if len(past) == 1:
            ((x0_1, h_1),) = past
            x = x + phi_2 * h / h_1 * (x0 - x0_1)
        elif past:
            (x0_1, h_1), (x0_2, h_2) = past
            r_1, r_2 = h_1 / h, h_2 / h
            d_1, d_2 = (x0 - x0_1) / r_1, (x0_1 - x0_2) / r_2
            second = (d_1 - d_2) / (r_1 + r_2)
            x = x + phi_2 * (d_1 + r_1 * second) - (phi_2 / (rate * h) - 0.5) * second
        x = x + sigma_next * _noise_std(eta * h) * noise_sampler(sigma, sigma_next)
        past = [(x0, h), *past][:2]
    return x


def seeds_2(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """SEEDS-2 with r = 1/2 (Gonzalez et al. 2023, arXiv:2305.14267)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        h = sigma.log() - sigma_next.log()
        sigma_mid = (sigma.log() - h / 2).exp()
        first, second = noise_sampler(sigma, sigma_mid), noise_sampler(sigma_mid, sigma_next)
        x_mid = (-h).exp() * x - (-h).expm1() * x0 + sigma_mid * _noise_std(h / 2) * first
        x0 = yield x_mid, sigma_mid
        x = (-2 * h).exp() * x - (-2 * h).expm1() * x0
        added = _noise_std(h / 2) * ((-h / 2).exp() * first + second)
        x = x + sigma_next * added
    return x


def exp_heun_2_x0(x: Tensor, sigmas: Tensor) -> Sampling:
    """RES in single steps of order 2 with c_2 = 1 (Zhang et al. 2023, arXiv:2308.02157).

    This is Heun's method with exponential integrators.
    """
    return (yield from _exp_heun_2(x, sigmas))


def exp_heun_2_x0_sde(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """`exp_heun_2_x0` for the reverse SDE, with the noise of SEEDS (arXiv:2305.14267)."""
    return (yield from _exp_heun_2(x, sigmas, noise_sampler))


def _exp_heun_2(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler | None = None) -> Sampling:
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        h = sigma.log() - sigma_next.log()
        rate_h = h if noise_sampler is None else 2 * h
        x = (-rate_h).exp() * x - (-rate_h).expm1() * x0
        if noise_sampler is not None:
            x = x + sigma_next * _noise_std(h) * noise_sampler(sigma, sigma_next)
            # As in ComfyUI, each step has a second draw, which is not used.
            noise_sampler(sigma_next, sigma_next)
        x0_next = yield x, sigma_next
        x = x + _phi_2(rate_h) * (x0_next - x0)
    return x


def seeds_3(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """SEEDS-3 with stages at 1/3 and 2/3 of a step (Gonzalez et al. 2023, arXiv:2305.14267)."""
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        start, end = sigma.log(), sigma_next.log()
        h = start - end
        sigma_1, sigma_2 = (start.lerp(end, part).exp() for part in (1 / 3, 2 / 3))
        std, decay = _noise_std(h / 3), (-h / 3).exp()
        added = std * noise_sampler(sigma, sigma_1)
        x_1 = (-h * 2 / 3).exp() * x - (-h * 2 / 3).expm1() * x0 + sigma_1 * added
        x0_1 = yield x_1, sigma_1
        added = decay * added + std * noise_sampler(sigma_1, sigma_2)
        x_2 = (-h * 4 / 3).exp() * x - (-h * 4 / 3).expm1() * x0
        x_2 = x_2 + 2 * _phi_2(h * 4 / 3) * (x0_1 - x0) + sigma_2 * added
        x0_2 = yield x_2, sigma_2
        added = decay * added + std * noise_sampler(sigma_2, sigma_next)
        x = (-2 * h).exp() * x - (-2 * h).expm1() * x0
        x = x + 1.5 * _phi_2(2 * h) * (x0_2 - x0) + sigma_next * added
    return x


def er_sde(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """ER-SDE-Solver-3 (Cui et al. 2023, arXiv:2309.06169) with sigma as the paper's lambda."""
    past: list[tuple[Tensor, Tensor]] = []
    slope_previous: Tensor | None = None
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        if sigma_next == 0:
            return x0
        scale = _er_noise_scale(sigma_next)
        r = scale / _er_noise_scale(sigma)
        x = r * x + (1 - r) * x0
        dt = sigma_next - sigma
        slope: Tensor | None = None
        if past:
            x0_1, sigma_1 = past[0]
            slope = (x0 - x0_1) / (sigma - sigma_1)
            width = -dt / _ER_POINTS
            points = sigma_next + torch.arange(_ER_POINTS) * width
            x = x + (dt + (1 / _er_noise_scale(points)).sum() * width * scale) * slope
            if slope_previous is not None:
                curve = (slope - slope_previous) / ((sigma - past[1][1]) / 2)
                moment = ((points - sigma) / _er_noise_scale(points)).sum() * width
                x = x + (dt**2 / 2 + moment * scale) * curve
        variance = (sigma_next**2 - sigma**2 * r**2).clamp(min=0)
        x = x + variance.sqrt() * noise_sampler(sigma, sigma_next)
        past, slope_previous = [(x0, sigma), *past][:2], slope
    return x


def _er_noise_scale(sigma: Tensor) -> Tensor:
    """Return the noise scale ER-SDE 5, which the paper recommends."""
    return sigma * ((sigma**0.3).exp() + 10)


def _phi_2(h: Tensor) -> Tensor:
    return (-h).expm1() / h + 1


def _noise_std(h: Tensor) -> Tensor:
    """Return the standard deviation of the noise that a step of size h adds, for a sigma of 1."""
    return (-(-2 * h).expm1()).sqrt()
