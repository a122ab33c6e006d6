"""UniPC: Zhao et al. 2023 (arXiv:2302.04867), data prediction, in variance-preserving space.

Everything is float32 down to the cancellation in 1 - alpha^2: ComfyUI's pixels depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.diffusion.samplers.runge_kutta import Sampling

_MOST_ORDER = 3
_LAST_SIGMA = 1e-3


def uni_pc(x: Tensor, sigmas: Tensor) -> Sampling:
    """UniPC with B_1(h) = h."""
    return (yield from _uni_pc(x, sigmas, exponential=False))


def uni_pc_bh2(x: Tensor, sigmas: Tensor) -> Sampling:
    """UniPC with B_2(h) = exp(h) - 1."""
    return (yield from _uni_pc(x, sigmas, exponential=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """A noise level in variance-preserving space."""

    sigma: Tensor

    @property
    def log_alpha(self) -> Tensor:
        return 0.5 * (1 / (self.sigma**2 + 1)).log()

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.exp()

    @property
    def deviation(self) -> Tensor:
        return (1 - (2 * self.log_alpha).exp()).sqrt()

    @property
    def log_snr(self) -> Tensor:
        return self.log_alpha - 0.5 * (1 - (2 * self.log_alpha).exp()).log()

    def ask(self, x: Tensor) -> Sampling:
        """x0 of a variance-preserving x."""
        x_exploding = x * (self.sigma**2 + 1).sqrt()
        x0 = yield x_exploding, self.sigma
        eps = (x_exploding - x0) / self.sigma
        return (x - self.deviation * eps) / self.alpha


def _uni_pc(x: Tensor, sigmas: Tensor, *, exponential: bool) -> Sampling:
    """The predictor's x is the corrector's question, except at the end.

    The order is below the number of steps, so that a single step leaves x as it was: ComfyUI's
    answer, too.
    """
    last = sigmas[-1:].clamp(min=_LAST_SIGMA)
    levels = [_Level(sigma) for sigma in torch.cat([sigmas[:-1], last])]
    steps = len(levels) - 1
    x = x / (sigmas[0] ** 2 + 1).sqrt()
    known = [(levels[0], (yield from levels[0].ask(x)))]
    if steps == 1:
        return x / levels[-1].alpha
    for i, level in enumerate(levels[1:], start=1):
        order = min(i, _MOST_ORDER, steps - 1, steps + 1 - i)
        step = _Step(known[:order], level, exponential=exponential)
        x_predicted = step.predicted(x)
        if i == steps:
            x = x_predicted
            break
        x0 = yield from level.ask(x_predicted)
        x = step.corrected(x, x0)
        known = [(level, x0), *known][:_MOST_ORDER]
    return x / levels[-1].alpha


class _Step:
    """One step from the newest of the known x0s, which are given newest first, to a level."""

    def __init__(
        self, known: list[tuple[_Level, Tensor]], level: _Level, *, exponential: bool
    ) -> None:
        (self._from, self._x0), *older = known
        self._to = level
        self._h = level.log_snr - self._from.log_snr
        ratios = [(old.log_snr - self._from.log_snr) / self._h for old, _ in older]
        self._differences = [(x0 - self._x0) / r for (_, x0), r in zip(older, ratios, strict=True)]
        self._b = (-self._h).expm1() if exponential else -self._h
        self._matrix, self._vector = self._conditions(torch.stack([*ratios, torch.tensor(1.0)]))

    def _conditions(self, ratios: Tensor) -> tuple[Tensor, Tensor]:
        """The linear equations that the weights of the differences satisfy."""
        phi = (-self._h).expm1() / -self._h - 1
        factorial = 1
        values: list[Tensor] = []
        for k in range(1, len(ratios) + 1):
            values.append(phi * factorial / self._b)
            factorial *= k + 1
            phi = phi / -self._h - 1 / factorial
        return torch.stack([ratios**k for k in range(len(ratios))]), torch.stack(values)

    def _first_order(self, x: Tensor) -> Tensor:
        ratio = self._to.deviation / self._from.deviation
        return ratio * x - self._to.alpha * (-self._h).expm1() * self._x0

    def _with(self, x: Tensor, weights: Tensor, differences: list[Tensor]) -> Tensor:
        change = torch.zeros_like(x)
        for weight, difference in zip(weights, differences, strict=True):
            change = change + weight * difference
        return self._first_order(x) - self._to.alpha * self._b * change

    def predicted(self, x: Tensor) -> Tensor:
        """UniP; with one difference its weight is 1/2 for every h, as in the paper."""
        count = len(self._differences)
        weights = torch.full((count,), 0.5)
        if count > 1:
            weights = torch.linalg.solve(self._matrix[:-1, :-1], self._vector[:-1])
        return self._with(x, weights, self._differences)

    def corrected(self, x: Tensor, x0: Tensor) -> Tensor:
        """UniC, with the model's answer at the end of the step."""
        weights = torch.tensor([0.5])
        if self._differences:
            weights = torch.linalg.solve(self._matrix, self._vector)
        return self._with(x, weights, [*self._differences, x0 - self._x0])
