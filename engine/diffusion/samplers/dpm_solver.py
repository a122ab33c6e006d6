"""DPM-Solver in single steps (Lu et al. 2022, arXiv:2206.00927).

t = -log sigma is the lambda of the paper. All samplers here end at the smallest sigma above 0,
without a last step to 0.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from engine.diffusion.samplers.ancestral import ancestral_step
from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.graph.names import ADAPTIVE_STEPS

_H_INIT = 0.05
_RTOL = 0.05
_ATOL = 0.0078
_ACCEPT_SAFETY = 0.81
_T_ERROR = 1e-5
_TINY = 1e-8
_ORDER, _NOISY_ORDER = 3, 1.5
"""The order that determines the next step size, for steps without noise and with noise."""
_THIRD, _TWO_THIRDS = 1 / 3, 2 / 3
"""As in k-diffusion, values are multiplied by these factors, not divided by 3. The error of a step
is a small difference of two estimates, so different rounding would change the next step's size.
"""

_Eps: TypeAlias = Generator[tuple[Tensor, Tensor], Tensor, Tensor]


def dpm_fast(x: Tensor, sigmas: Tensor) -> Sampling:
    """DPM-Solver-fast. It makes as many calls as the schedule has steps, mostly in order 3."""
    return (yield from _fast(x, sigmas, _NO_NOISE))


def dpm_fast_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """`dpm_fast` with ancestral steps."""
    return (yield from _fast(x, sigmas, _StepNoise(noise_sampler, eta)))


def dpm_adaptive(x: Tensor, sigmas: Tensor) -> Sampling:
    """The adaptive DPM-Solver of orders 2 and 3. The error of a step determines the next step size.

    Raises ValueError if an output of the model is not finite, or if the sampler needs more than
    `ADAPTIVE_STEPS` steps and more steps than the schedule has.
    """
    return (yield from _adaptive(x, sigmas, _NO_NOISE))


def dpm_adaptive_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """`dpm_adaptive` with ancestral steps."""
    return (yield from _adaptive(x, sigmas, _StepNoise(noise_sampler, eta)))


@dataclass(frozen=True, slots=True)
class _StepNoise:
    """The noise at the end of each step. If `eta` is 0, there is no noise."""

    sampler: NoiseSampler | None
    eta: float

    def denoised_to(self, t: Tensor, t_next: Tensor, t_end: Tensor) -> Tensor:
        """Return the time to which a step denoises. The added noise then leads back to `t_next`."""
        if not self.eta:
            return t_next
        down, _ = ancestral_step((-t).exp(), (-t_next).exp(), self.eta)
        return torch.minimum(t_end, -down.log())

    def added(self, x: Tensor, t: Tensor, t_down: Tensor, t_next: Tensor) -> Tensor:
        if not self.eta or self.sampler is None:
            return x
        sigma, sigma_next = (-t).exp(), (-t_next).exp()
        std = (sigma_next**2 - (-t_down).exp() ** 2).clamp(min=0).sqrt()
        return x + std * self.sampler(sigma, sigma_next)


_NO_NOISE = _StepNoise(None, 0.0)


def _fast(x: Tensor, sigmas: Tensor, noise: _StepNoise) -> Sampling:
    t_start, t_end = _ends(sigmas)
    calls = len(sigmas) - 1
    orders = _orders(calls)
    for (t, t_next), order in zip(
        pairwise(torch.linspace(t_start, t_end, len(orders) + 1)), orders, strict=True
    ):
        t_down = noise.denoised_to(t, t_next, torch.tensor(t_end))
        h = t_down - t
        eps = yield from _eps(x, t)
        if order == 1:
            x = x - (-t_down).exp() * h.expm1() * eps
        elif order == 2:
            eps_1 = yield from _eps_1(x, t, h / 2, eps)
            x = _second_order(x, t_down, h, eps=eps, eps_1=eps_1, r=0.5)
        else:
            eps_1 = yield from _eps_1(x, t, _THIRD * h, eps)
            eps_2 = yield from _eps_2(x, t, h, eps=eps, eps_1=eps_1)
            x = _third_order(x, t_down, h, eps=eps, eps_2=eps_2)
        x = noise.added(x, t, t_down, t_next)
    return x


def _adaptive(x: Tensor, sigmas: Tensor, noise: _StepNoise) -> Sampling:
    t, t_end = (torch.tensor(end) for end in _ends(sigmas))
    h_next = _H_INIT
    x_previous = x
    steps, most = 0, max(len(sigmas) - 1, ADAPTIVE_STEPS)
    order = _NOISY_ORDER if noise.eta else _ORDER
    while t < t_end - _T_ERROR:
        if (steps := steps + 1) > most:
            raise ValueError(
                f"dpm_adaptive has not finished after {most} steps: use more steps, a lower cfg, "
                "or another sampler"
            )
        t_next = torch.minimum(t_end, t + h_next)
        t_down = noise.denoised_to(t, t_next, t_end)
        h = t_down - t
        eps = yield from _eps(x, t)
        eps_1 = yield from _eps_1(x, t, _THIRD * h, eps)
        x_low = _second_order(x, t_down, h, eps=eps, eps_1=eps_1, r=_THIRD)
        eps_2 = yield from _eps_2(x, t, h, eps=eps, eps_1=eps_1)
        x_high = _third_order(x, t_down, h, eps=eps, eps_2=eps_2)
        error = _error(x_low, x_high, x_previous)
        factor = 1 + math.atan((error + _TINY) ** (-1 / order) - 1)
        if factor >= _ACCEPT_SAFETY:
            x = noise.added(x_high, t, t_down, t_next)
            t, x_previous = t_next, x_low
        h_next *= factor
    return x


def _error(x_low: Tensor, x_high: Tensor, x_previous: Tensor) -> float:
    """Return the difference of the two estimates of a step, relative to the tolerance."""
    tolerance = (_RTOL * torch.maximum(x_low.abs(), x_previous.abs())).clamp(min=_ATOL)
    error = float(((x_low - x_high) / tolerance).square().mean().sqrt())
    if not math.isfinite(error):
        raise ValueError("the model's output is not a number")
    return error


def _ends(sigmas: Tensor) -> tuple[float, float]:
    sigma_min = sigmas[-1] if sigmas[-1] > 0 else sigmas[-2]
    return float(-sigmas[0].log()), float(-sigma_min.log())


def _orders(calls: int) -> list[int]:
    threes, rest = divmod(calls, 3)
    return [3] * threes + [rest] if rest else [3] * (threes - 1) + [2, 1]


def _eps(x: Tensor, t: Tensor) -> _Eps:
    sigma = (-t).exp()
    x0 = yield x, sigma
    return (x - x0) / sigma


def _eps_1(x: Tensor, t: Tensor, part: Tensor, eps: Tensor) -> _Eps:
    """Return the noise after a first-order step of size `part`."""
    return (yield from _eps(x - (-(t + part)).exp() * part.expm1() * eps, t + part))


def _eps_2(x: Tensor, t: Tensor, h: Tensor, *, eps: Tensor, eps_1: Tensor) -> _Eps:
    """Return the noise at two thirds of a step, from the noise at its start and at one third."""
    part = _TWO_THIRDS * h
    sigma = (-(t + part)).exp()
    u = x - sigma * part.expm1() * eps - 2 * sigma * (part.expm1() / part - 1) * (eps_1 - eps)
    return (yield from _eps(u, t + part))


def _second_order(
    x: Tensor, t_next: Tensor, h: Tensor, *, eps: Tensor, eps_1: Tensor, r: float
) -> Tensor:
    """Return x after a step, from the noise at its start and at its fraction `r`."""
    sigma = (-t_next).exp()
    return x - sigma * h.expm1() * eps - sigma / (2 * r) * h.expm1() * (eps_1 - eps)


def _third_order(x: Tensor, t_next: Tensor, h: Tensor, *, eps: Tensor, eps_2: Tensor) -> Tensor:
    """Return x after a step, from the noise at its start and at two thirds."""
    sigma = (-t_next).exp()
    slope = sigma / _TWO_THIRDS * (h.expm1() / h - 1) * (eps_2 - eps)
    return x - sigma * h.expm1() * eps - slope
