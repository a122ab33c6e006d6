"""Samplers that use their past steps.

All samplers here except `sa_solver_pece` call the model once for each step. SA-Solver (Xue et al.
2023, arXiv:2309.05019) predicts data, and its lambda is -log sigma. Its tau scales the noise of the
reverse SDE: a tau of 0 gives the ODE, and a tau of 1 gives the SDE of the forward process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from torch import Tensor

from engine.diffusion.samplers.ancestral import ancestral_step
from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling

_ADAMS_BASHFORTH = (
    (1.0,),
    (3 / 2, -1 / 2),
    (23 / 12, -16 / 12, 5 / 12),
    (55 / 24, -59 / 24, 37 / 24, -9 / 24),
)
_LMS_ORDER = 4
_DEIS_ORDER = 3
_DEIS_POINTS = 10_000
_DEIS_SIGMAS = (0.002, 80.0)
_DEIS_TIME_MIN = 1e-3
_GAMMA = 2.0


def dpmpp_2m(x: Tensor, sigmas: Tensor) -> Sampling:
    """DPM-Solver++(2M) with lambda = -log sigma (Lu et al. 2022, arXiv:2211.01095, algorithm 2)."""
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


def dpmpp_2m_cfg_pp(x: Tensor, sigmas: Tensor) -> Sampling:
    """`dpmpp_2m` with CFG++ (arXiv:2406.08070), which keeps the unconditional noise."""
    previous: Tensor | None = None
    h_previous: Tensor | None = None
    for sigma, sigma_next in pairwise(sigmas):
        x0, x0_uncond = yield x, sigma
        h = sigma.log() - sigma_next.log()
        x = x0 + (-h).exp() * (x - x0_uncond)
        if previous is not None and h_previous is not None and sigma_next > 0:
            x = x - (-h).expm1() * h / h_previous / 2 * (x0 - previous)
        previous, h_previous = x0_uncond, h
    return x


def res_multistep(x: Tensor, sigmas: Tensor) -> Sampling:
    """Multistep RES of order 2 with lambda = -log sigma (Zhang et al. 2023, arXiv:2308.02157)."""
    return (yield from _res_multistep(x, sigmas))


def res_multistep_cfg_pp(x: Tensor, sigmas: Tensor) -> Sampling:
    """`res_multistep` with CFG++ (arXiv:2406.08070)."""
    return (yield from _res_multistep(x, sigmas, cfg_pp=True))


def res_multistep_ancestral(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """`res_multistep` with ancestral steps."""
    return (yield from _res_multistep(x, sigmas, noise_sampler))


def res_multistep_ancestral_cfg_pp(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler
) -> Sampling:
    """`res_multistep_ancestral` with CFG++ (arXiv:2406.08070)."""
    return (yield from _res_multistep(x, sigmas, noise_sampler, cfg_pp=True))


def _res_multistep(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler | None = None, *, cfg_pp: bool = False
) -> Sampling:
    previous: Tensor | None = None
    h_previous: Tensor | None = None
    for sigma, sigma_next in pairwise(sigmas):
        denoised = yield x, sigma
        x0, x0_uncond = denoised if cfg_pp else (denoised, denoised)
        sigma_down, sigma_up = (
            (sigma_next, 0) if noise_sampler is None else ancestral_step(sigma, sigma_next)
        )
        h = sigma.log() - sigma_down.log()
        if previous is None or h_previous is None or sigma_down == 0:
            x = x0 + (x - x0_uncond) / sigma * sigma_down
        else:
            x = (-h).exp() * (x + (x0 - x0_uncond)) - (-h).expm1() * x0_uncond
            h_phi_2 = (-h).expm1() / h + 1
            x = x + h_phi_2 * h / h_previous * (x0_uncond - previous)
        if noise_sampler is not None and sigma_next > 0:
            x = x + noise_sampler(sigma, sigma_next) * sigma_up
        previous, h_previous = x0_uncond, h
    return x


def gradient_estimation(x: Tensor, sigmas: Tensor) -> Sampling:
    """Gradient estimation with gamma = 2 (Permenter and Yuan 2023, arXiv:2306.04848)."""
    return (yield from _gradient_estimation(x, sigmas, cfg_pp=False))


def gradient_estimation_cfg_pp(x: Tensor, sigmas: Tensor) -> Sampling:
    """`gradient_estimation` with CFG++ (arXiv:2406.08070)."""
    return (yield from _gradient_estimation(x, sigmas, cfg_pp=True))


def _gradient_estimation(x: Tensor, sigmas: Tensor, *, cfg_pp: bool) -> Sampling:
    previous: Tensor | None = None
    for sigma, sigma_next in pairwise(sigmas):
        denoised = yield x, sigma
        x0, x0_uncond = denoised if cfg_pp else (denoised, denoised)
        d = (x - x0_uncond) / sigma
        x = x0 + d * sigma_next
        if previous is not None and sigma_next > 0:
            x = x + (_GAMMA - 1) * (d - previous) * (sigma_next - sigma)
        previous = d
    return x


def ipndm(x: Tensor, sigmas: Tensor) -> Sampling:
    """Improved PNDM of order 4 for equal steps (Zhang and Chen 2022, arXiv:2204.13902)."""
    slopes: list[Tensor] = []
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        slopes = [(x - x0) / sigma, *slopes][: len(_ADAMS_BASHFORTH)]
        h = sigma_next - sigma
        x = _plus(x, [w * h for w in _ADAMS_BASHFORTH[len(slopes) - 1]], slopes)
        if sigma_next == 0:
            x = x0
    return x


def ipndm_v(x: Tensor, sigmas: Tensor) -> Sampling:
    """`ipndm` with weights that depend on the sizes of the steps.

    As in ComfyUI, the weights are from the authors' program (github.com/zju-pi/diff-sampler). They
    differ from the weights of Adams and Bashforth, which `lms` uses.
    """
    slopes: list[Tensor] = []
    steps: list[Tensor] = []
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        slopes = [(x - x0) / sigma, *slopes][: len(_ADAMS_BASHFORTH)]
        h = sigma_next - sigma
        x = _plus(x, [w * h for w in ipndm_v_weights(h, steps)], slopes)
        if sigma_next == 0:
            x = x0
        steps = [h, *steps][: len(_ADAMS_BASHFORTH) - 1]
    return x


def lms(x: Tensor, sigmas: Tensor) -> Sampling:
    """Adams-Bashforth of order 4 in sigma (Liu et al. 2022, arXiv:2202.09778)."""
    slopes: list[Tensor] = []
    values = sigmas.double().numpy()
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        x0 = yield x, sigma
        slopes = [(x - x0) / sigma, *slopes][:_LMS_ORDER]
        past = values[i - len(slopes) + 1 : i + 1][::-1]
        weights = [lagrange(past, j).integ() for j in range(len(slopes))]
        x = _plus(x, [float(w(values[i + 1]) - w(values[i])) for w in weights], slopes)
        if sigma_next == 0:
            x = x0
    return x


def deis(x: Tensor, sigmas: Tensor) -> Sampling:
    """tAB-DEIS of order 3 in VP time (Zhang and Chen 2022, arXiv:2204.13902)."""
    slopes: list[Tensor] = []
    values = sigmas.double().numpy()
    for i, (sigma, sigma_next) in enumerate(pairwise(sigmas)):
        x0 = yield x, sigma
        slopes = [(x - x0) / sigma, *slopes][:_DEIS_ORDER]
        if len(slopes) == 1 or sigma_next == 0:
            x = x + slopes[0] * (sigma_next - sigma)
        else:
            past = values[i - len(slopes) + 1 : i + 1][::-1]
            x = _plus(x, _deis_weights(past, values[i + 1]), slopes)
    return x


def _plus(x: Tensor, weights: Sequence[float | Tensor], slopes: list[Tensor]) -> Tensor:
    for weight, slope in zip(weights, slopes, strict=True):
        x = x + weight * slope
    return x


def ipndm_v_weights(h: Tensor, past: Sequence[Tensor]) -> list[Tensor]:
    """Return the weights of the slopes, newest first, for a step of size `h`.

    `past` has the sizes of the past steps, newest first. Each past step adds a difference of the
    slopes, multiplied by a factor.
    """
    weights = [torch.ones_like(h), *(torch.zeros_like(h) for _ in past)]
    for count in range(1, len(past) + 1):
        factor, difference = _ipndm_v_difference(h, past[:count])
        for index, part in enumerate(difference):
            weights[index] = weights[index] + factor * part
    return weights


def _ipndm_v_difference(
    h: Tensor, past: Sequence[Tensor]
) -> tuple[Tensor, tuple[Tensor | float, ...]]:
    match past:
        case [h_1]:
            return h / (2 * h_1), (1, -1)
        case [h_1, h_2]:
            r = h_1 / h_2
            return (1 - h**2 / (3 * h_1 * (h_1 + h_2))) / 2, (1, -1 - r, r)
        case [h_1, h_2, h_3]:
            r, q = h_1 / h_2, h_1 * (h_1 + h_2) / (h_2 * (h_2 + h_3))
            two, three = h + h_1, h + h_1 + h_2
            scale = h * two * three / (h_1 * (h_1 + h_2) * (h_1 + h_2 + h_3))
            factor = (1 - h / (3 * two)) / 2 + (1 - h / (2 * two)) * h / (6 * three)
            return factor * scale, (1, -1 - r - q, r + q * (1 + h_2 / h_3), -q * r)
        case _:
            raise AssertionError("there are four slopes at most")


def lagrange(points: NDArray[np.float64], j: int) -> Polynomial:
    """Return the Lagrange polynomial that is 1 at the j-th point and 0 at all other points."""
    others = np.delete(points, j)
    product = Polynomial.fromroots(others) if len(others) else Polynomial([1.0])
    polynomial: Polynomial = product / product(points[j])
    return polynomial


def _deis_weights(past: NDArray[np.float64], sigma_next: float) -> list[float]:
    """Return the integral over dsigma of each Lagrange polynomial in VP time, newest first."""
    slope, intercept = _vp_rates()
    times = _vp_time(np.append(past, sigma_next), slope, intercept)
    tau = np.linspace(times[0], times[-1], _DEIS_POINTS)
    exponent = slope * tau**2 / 2 + intercept * tau
    sigma = np.sqrt(np.expm1(exponent))
    dsigma = np.exp(exponent) * (slope * tau + intercept) / (2 * sigma)
    span = times[-1] - times[0]
    # The integral is a mean over the points: the trapezoidal rule would give other pixels.
    return [float(np.mean(lagrange(times[:-1], j)(tau) * dsigma) * span) for j in range(len(past))]


def _vp_rates() -> tuple[float, float]:
    """Return slope and intercept of beta(t) = slope t + intercept.

    At both ends, the integral of beta is log(1 + sigma^2).
    """
    first, last = (float(np.log1p(sigma**2)) for sigma in _DEIS_SIGMAS)
    slope = 2 * (first / _DEIS_TIME_MIN - last) / (_DEIS_TIME_MIN - 1)
    return slope, last - slope / 2


def _vp_time(sigmas: NDArray[np.float64], slope: float, intercept: float) -> NDArray[np.float64]:
    time: NDArray[np.float64] = (
        np.sqrt(intercept**2 + 2 * slope * np.log1p(sigmas**2)) - intercept
    ) / slope
    return time


_PREDICTOR_ORDER = 3
_CORRECTOR_ORDER = 4


def sa_solver(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, interval: tuple[float, float]
) -> Sampling:
    """SA-Solver with a tau of 1 between both sigmas of `interval`, and of 0 before and after.

    The authors' scheduler in diffusers has the same tau. The orders 3 and 4 are from the paper.
    """
    return (yield from stochastic_adams(x, sigmas, noise_sampler, _tau_in(interval)))


def sa_solver_pece(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, interval: tuple[float, float]
) -> Sampling:
    """`sa_solver` with a second call in each step: predict, evaluate, correct, evaluate."""
    return (
        yield from stochastic_adams(
            x, sigmas, noise_sampler, _tau_in(interval), evaluates_twice=True
        )
    )


def _tau_in(interval: tuple[float, float]) -> Callable[[float], float]:
    most, least = interval
    return lambda sigma: float(least <= sigma <= most)


def stochastic_adams(
    x: Tensor,
    sigmas: Tensor,
    noise_sampler: NoiseSampler,
    tau_at: Callable[[float], float],
    *,
    evaluates_twice: bool = False,
) -> Sampling:
    """Run algorithm 1 of SA-Solver. If the schedule ends at 0, its last steps have lower orders."""
    past: list[tuple[float, Tensor]] = []
    step: _Step | None = None
    for left, (sigma, sigma_next) in zip(
        range(len(sigmas) - 1, 0, -1), pairwise(sigmas), strict=True
    ):
        x0 = yield x, sigma
        order = left - 1 if sigmas[-1] == 0 else _CORRECTOR_ORDER
        past = [(float(sigma), x0), *past][:_CORRECTOR_ORDER]
        if step is not None and (evaluates_twice or sigma_next > 0):
            x = step.end(past[: order + 1])
            if evaluates_twice:
                x0 = yield x, sigma
                past[0] = float(sigma), x0
        if sigma_next == 0:
            return x0
        step = _Step(
            x, sigma, sigma_next, tau=tau_at(float(sigma_next)), noise_sampler=noise_sampler
        )
        x = step.end(past[: min(order, _PREDICTOR_ORDER)])
    return x


class _Step:
    """A step between two sigmas. The predictor and the corrector use the same noise."""

    def __init__(
        self,
        x: Tensor,
        sigma: Tensor,
        sigma_next: Tensor,
        *,
        tau: float,
        noise_sampler: NoiseSampler,
    ) -> None:
        h = sigma.log() - sigma_next.log()
        self._rate = 1 + tau**2
        self._sigma, self._sigma_next = float(sigma), float(sigma_next)
        self._x = (-self._rate * h).exp() * x
        if tau > 0:
            std = (-(-2 * tau**2 * h).expm1()).sqrt()
            self._x = self._x + noise_sampler(sigma, sigma_next) * sigma_next * std

    def end(self, past: Sequence[tuple[float, Tensor]]) -> Tensor:
        """Return x at `sigma_next`. The step's x0 is the polynomial in lambda through past x0s."""
        ago = np.array([math.log(sigma / self._sigma_next) for sigma, _ in past])
        moments = self._moments(len(past))
        x = self._x
        for j, (_, x0) in enumerate(past):
            x = x + float(lagrange(ago, j).coef @ moments) * x0
        return x

    def _moments(self, count: int) -> np.ndarray:
        """Return the integrals of rate * exp(-rate u) u^k over u from 0 to h."""
        h = math.log(self._sigma / self._sigma_next)
        end = math.exp(-self._rate * h)
        moments = [-math.expm1(-self._rate * h)]
        for k in range(1, count):
            moments.append(k / self._rate * moments[-1] - h**k * end)
        return np.array(moments)
