"""DPM-Solver in single steps: Lu et al. 2022 (arXiv:2206.00927), t = -log sigma for its lambda.

Both end at the least level above 0, without a last step to 0.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from engine.diffusion.samplers.runge_kutta import Sampling

_FIRST_H = 0.05
_RELATIVE = 0.05
_ABSOLUTE = 0.0078
_ACCEPTED = 0.81
_CLOSE = 1e-5
_TINY = 1e-8
_THIRD, _TWO_THIRDS = 1 / 3, 2 / 3
"""Multiplied with, not divided by: the error of a step is the small difference of two estimates, so
that an order of operations other than k-diffusion's is seen in the size of the next step."""

_Slope: TypeAlias = Generator[tuple[Tensor, Tensor], Tensor, Tensor]


def dpm_fast(x: Tensor, sigmas: Tensor) -> Sampling:
    """DPM-Solver-fast: as many calls as steps, in steps of order 3 and the rest."""
    t_start, t_end = _ends(sigmas)
    calls = len(sigmas) - 1
    orders = _orders(calls)
    for (t, t_next), order in zip(
        pairwise(torch.linspace(t_start, t_end, len(orders) + 1)), orders, strict=True
    ):
        h = t_next - t
        eps = yield from _eps(x, t)
        if order == 1:
            x = x - (-t_next).exp() * h.expm1() * eps
        elif order == 2:
            eps_1 = yield from _eps_1(x, t, h / 2, eps)
            x = _second_order(x, t_next, h, (eps, eps_1), r=0.5)
        else:
            eps_1 = yield from _eps_1(x, t, _THIRD * h, eps)
            eps_2 = yield from _eps_2(x, t, h, (eps, eps_1))
            x = _third_order(x, t_next, h, (eps, eps_2))
    return x


def dpm_adaptive(x: Tensor, sigmas: Tensor) -> Sampling:
    """The adaptive DPM-Solver, orders 2 and 3: steps as large as their error allows.

    Raises ValueError where the model's answers are no numbers.
    """
    t, t_end = (torch.tensor(end) for end in _ends(sigmas))
    h_tried = _FIRST_H
    x_low_before = x
    while t < t_end - _CLOSE:
        t_next = torch.minimum(t_end, t + h_tried)
        h = t_next - t
        eps = yield from _eps(x, t)
        eps_1 = yield from _eps_1(x, t, _THIRD * h, eps)
        x_low = _second_order(x, t_next, h, (eps, eps_1), r=_THIRD)
        eps_2 = yield from _eps_2(x, t, h, (eps, eps_1))
        x_high = _third_order(x, t_next, h, (eps, eps_2))
        allowed = (_RELATIVE * torch.maximum(x_low.abs(), x_low_before.abs())).clamp(min=_ABSOLUTE)
        error = float(((x_low - x_high) / allowed).square().mean().sqrt())
        if not math.isfinite(error):
            raise ValueError("the model's answer is not a number")
        factor = 1 + math.atan((error + _TINY) ** (-1 / 3) - 1)
        if factor >= _ACCEPTED:
            x, t, x_low_before = x_high, t_next, x_low
        h_tried *= factor
    return x


def _ends(sigmas: Tensor) -> tuple[float, float]:
    least = sigmas[-1] if sigmas[-1] > 0 else sigmas[-2]
    return float(-sigmas[0].log()), float(-least.log())


def _orders(calls: int) -> list[int]:
    threes, rest = divmod(calls, 3)
    return [3] * threes + [rest] if rest else [3] * (threes - 1) + [2, 1]


def _eps(x: Tensor, t: Tensor) -> _Slope:
    """The noise in x at t."""
    sigma = (-t).exp()
    x0 = yield x, sigma
    return (x - x0) / sigma


def _eps_1(x: Tensor, t: Tensor, part: Tensor, eps: Tensor) -> _Slope:
    """The noise after a first-order step of size `part`."""
    return (yield from _eps(x - (-(t + part)).exp() * part.expm1() * eps, t + part))


def _eps_2(x: Tensor, t: Tensor, h: Tensor, known: tuple[Tensor, Tensor]) -> _Slope:
    """The noise at two thirds of the step, from those at its start and at one third."""
    eps, eps_1 = known
    part = _TWO_THIRDS * h
    sigma = (-(t + part)).exp()
    u = x - sigma * part.expm1() * eps - 2 * sigma * (part.expm1() / part - 1) * (eps_1 - eps)
    return (yield from _eps(u, t + part))


def _second_order(
    x: Tensor, t_next: Tensor, h: Tensor, known: tuple[Tensor, Tensor], *, r: float
) -> Tensor:
    """`known`: the noise at the start, and after the part `r` of the step."""
    eps, eps_1 = known
    sigma = (-t_next).exp()
    return x - sigma * h.expm1() * eps - sigma / (2 * r) * h.expm1() * (eps_1 - eps)


def _third_order(x: Tensor, t_next: Tensor, h: Tensor, known: tuple[Tensor, Tensor]) -> Tensor:
    """`known`: the noise at the start and at two thirds of the step."""
    eps, eps_2 = known
    sigma = (-t_next).exp()
    slope = sigma / _TWO_THIRDS * (h.expm1() / h - 1) * (eps_2 - eps)
    return x - sigma * h.expm1() * eps - slope
