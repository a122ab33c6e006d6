"""SA-Solver: Xue et al. 2023 (arXiv:2309.05019), data prediction; lambda = -log sigma.

tau scales the noise of the reverse SDE: at 0 it is the ODE, at 1 the SDE of the forward process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from engine.diffusion.samplers.multistep import lagrange
from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION
from engine.diffusion.samplers.runge_kutta import Sampling

_PREDICTOR_ORDER = 3
_CORRECTOR_ORDER = 4
_TAU_SIGMA_MAX, _TAU_SIGMA_MIN = (
    STABLE_DIFFUSION.percent_to_sigma(percent) for percent in (0.2, 0.8)
)


def sa_solver(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """tau is 1 from 20 to 80 % of the timesteps, and 0 before and after.

    This is the choice of the authors' scheduler in diffusers; the orders 3 and 4 are the paper's.
    """
    return (yield from stochastic_adams(x, sigmas, noise_sampler, _tau_at))


def sa_solver_pece(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """`sa_solver` with a second call in each step: predict, evaluate, correct, evaluate."""
    return (yield from stochastic_adams(x, sigmas, noise_sampler, _tau_at, evaluates_twice=True))


def _tau_at(sigma: float) -> float:
    return float(_TAU_SIGMA_MIN <= sigma <= _TAU_SIGMA_MAX)


def stochastic_adams(
    x: Tensor,
    sigmas: Tensor,
    noise_sampler: NoiseSampler,
    tau_at: Callable[[float], float],
    *,
    evaluates_twice: bool = False,
) -> Sampling:
    """Algorithm 1; its orders decrease towards the end of a schedule that ends at 0."""
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
    """A step between two sigmas; its predictor and its corrector use the same noise."""

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
        """x at `sigma_next`, where x0 is the polynomial in lambda through the past x0s."""
        ago = np.array([math.log(sigma / self._sigma_next) for sigma, _ in past])
        moments = self._moments(len(past))
        x = self._x
        for j, (_, x0) in enumerate(past):
            x = x + float(lagrange(ago, j).coef @ moments) * x0
        return x

    def _moments(self, count: int) -> np.ndarray:
        """The integrals of rate * exp(-rate u) u^k over u from 0 to h."""
        h = math.log(self._sigma / self._sigma_next)
        end = math.exp(-self._rate * h)
        moments = [-math.expm1(-self._rate * h)]
        for k in range(1, count):
            moments.append(k / self._rate * moments[-1] - h**k * end)
        return np.array(moments)
