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
from engine.diffusion.samplers.noise import Noise
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION
from engine.diffusion.samplers.runge_kutta import Sampling

_PREDICTOR_ORDER = 3
_CORRECTOR_ORDER = 4
_NOISY_FROM, _NOISY_TO = (STABLE_DIFFUSION.percent_to_sigma(percent) for percent in (0.2, 0.8))


def sa_solver(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """tau is 1 from 20 to 80 % of the training steps and 0 before and after.

    So it is in the authors' scheduler for diffusers; orders are the 3 and 4 of the paper.
    """
    return (yield from stochastic_adams(x, sigmas, noise, _tau_at))


def sa_solver_pece(x: Tensor, sigmas: Tensor, noise: Noise) -> Sampling:
    """`sa_solver` that asks again after each correction: predict, evaluate, correct, evaluate."""
    return (yield from stochastic_adams(x, sigmas, noise, _tau_at, evaluates_twice=True))


def _tau_at(sigma: float) -> float:
    return float(_NOISY_TO <= sigma <= _NOISY_FROM)


def stochastic_adams(
    x: Tensor,
    sigmas: Tensor,
    noise: Noise,
    tau_at: Callable[[float], float],
    *,
    evaluates_twice: bool = False,
) -> Sampling:
    """Algorithm 1; its orders fall towards the end of a schedule that ends at 0."""
    known: list[tuple[float, Tensor]] = []
    step: _Step | None = None
    for left, (sigma, sigma_next) in zip(
        range(len(sigmas) - 1, 0, -1), pairwise(sigmas), strict=True
    ):
        x0 = yield x, sigma
        room = left - 1 if sigmas[-1] == 0 else _CORRECTOR_ORDER
        known = [(float(sigma), x0), *known][:_CORRECTOR_ORDER]
        if step is not None and (evaluates_twice or sigma_next > 0):
            x = step.to_its_end(known[: room + 1])
            if evaluates_twice:
                x0 = yield x, sigma
                known[0] = float(sigma), x0
        if sigma_next == 0:
            return x0
        step = _Step(x, (sigma, sigma_next), tau_at(float(sigma_next)), noise)
        x = step.to_its_end(known[: min(room, _PREDICTOR_ORDER)])
    return x


class _Step:
    """From a level to the next: the same noise serves prediction and correction."""

    def __init__(self, x: Tensor, levels: tuple[Tensor, Tensor], tau: float, noise: Noise) -> None:
        sigma, sigma_next = levels
        h = sigma.log() - sigma_next.log()
        self._rate = 1 + tau**2
        self._sigma, self._sigma_next = float(sigma), float(sigma_next)
        self._kept = (-self._rate * h).exp() * x
        if tau > 0:
            deviation = (-(-2 * tau**2 * h).expm1()).sqrt()
            self._kept = self._kept + noise(sigma, sigma_next) * sigma_next * deviation

    def to_its_end(self, known: Sequence[tuple[float, Tensor]]) -> Tensor:
        """x there, x0 being the polynomial in lambda through those that are known."""
        ago = np.array([math.log(sigma / self._sigma_next) for sigma, _ in known])
        moments = self._moments(len(known))
        x = self._kept
        for j, (_, x0) in enumerate(known):
            x = x + float(lagrange(ago, j).coef @ moments) * x0
        return x

    def _moments(self, count: int) -> np.ndarray:
        """The integrals of rate * exp(-rate u) u^k over u from 0 to h."""
        h = math.log(self._sigma / self._sigma_next)
        end = math.exp(-self._rate * h)
        found = [-math.expm1(-self._rate * h)]
        for k in range(1, count):
            found.append(k / self._rate * found[-1] - h**k * end)
        return np.array(found)
