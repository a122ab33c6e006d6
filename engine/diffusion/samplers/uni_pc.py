"""UniPC with data prediction in variance-preserving space (Zhao et al. 2023, arXiv:2302.04867).

All values are float32, also where 1 - alpha^2 loses precision, because ComfyUI does the same and
the pixels depend on this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.diffusion.samplers.runge_kutta import Sampling

_MAX_ORDER = 3
LAST_SIGMA = 1e-3
"""The sigma at which UniPC ends instead of 0."""


def uni_pc(x: Tensor, sigmas: Tensor) -> Sampling:
    """UniPC with B_1(h) = h."""
    return (yield from _uni_pc(x, sigmas, exponential=False))


def uni_pc_bh2(x: Tensor, sigmas: Tensor) -> Sampling:
    """UniPC with B_2(h) = exp(h) - 1."""
    return (yield from _uni_pc(x, sigmas, exponential=True))


@dataclass(frozen=True, slots=True, eq=False)
class _Marginal:
    """A sigma in variance-preserving space, where x is `alpha` * x0 plus noise of `std`."""

    sigma: Tensor

    @property
    def log_alpha(self) -> Tensor:
        return 0.5 * (1 / (self.sigma**2 + 1)).log()

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.exp()

    @property
    def std(self) -> Tensor:
        return (1 - (2 * self.log_alpha).exp()).sqrt()

    @property
    def half_log_snr(self) -> Tensor:
        return self.log_alpha - 0.5 * (1 - (2 * self.log_alpha).exp()).log()

    def x0_of(self, x: Tensor) -> Sampling:
        """Call the model, and return x0 of a variance-preserving x."""
        x_ve = x * (self.sigma**2 + 1).sqrt()
        x0 = yield x_ve, self.sigma
        eps = (x_ve - x0) / self.sigma
        return (x - self.std * eps) / self.alpha


def _uni_pc(x: Tensor, sigmas: Tensor, *, exponential: bool) -> Sampling:
    """Run UniPC. The corrector uses the x0 at the predicted x. The last step has no corrector.

    The order is below the number of steps. As in ComfyUI, a single step only rescales x.
    """
    last = sigmas[-1:].clamp(min=LAST_SIGMA)
    marginals = [_Marginal(sigma) for sigma in torch.cat([sigmas[:-1], last])]
    steps = len(marginals) - 1
    x = x / (sigmas[0] ** 2 + 1).sqrt()
    past = [(marginals[0], (yield from marginals[0].x0_of(x)))]
    if steps == 1:
        return x / marginals[-1].alpha
    for i, marginal in enumerate(marginals[1:], start=1):
        order = min(i, _MAX_ORDER, steps - 1, steps + 1 - i)
        step = _Step(past[:order], marginal, exponential=exponential)
        x_predicted = step.predicted(x)
        if i == steps:
            x = x_predicted
            break
        x0 = yield from marginal.x0_of(x_predicted)
        x = step.corrected(x, x0)
        past = [(marginal, x0), *past][:_MAX_ORDER]
    return x / marginals[-1].alpha


class _Step:
    """One step to the marginal `end`. `past` has past marginals with their x0s, newest first."""

    def __init__(
        self, past: list[tuple[_Marginal, Tensor]], end: _Marginal, *, exponential: bool
    ) -> None:
        (self._start, self._x0), *older = past
        self._end = end
        self._h = end.half_log_snr - self._start.half_log_snr
        ratios = [(old.half_log_snr - self._start.half_log_snr) / self._h for old, _ in older]
        self._differences = [(x0 - self._x0) / r for (_, x0), r in zip(older, ratios, strict=True)]
        self._b = (-self._h).expm1() if exponential else -self._h
        self._matrix, self._vector = self._conditions(torch.stack([*ratios, torch.tensor(1.0)]))

    def _conditions(self, ratios: Tensor) -> tuple[Tensor, Tensor]:
        """Return matrix and vector of the linear equations for the weights of the differences."""
        phi = (-self._h).expm1() / -self._h - 1
        factorial = 1
        values: list[Tensor] = []
        for k in range(1, len(ratios) + 1):
            values.append(phi * factorial / self._b)
            factorial *= k + 1
            phi = phi / -self._h - 1 / factorial
        return torch.stack([ratios**k for k in range(len(ratios))]), torch.stack(values)

    def _first_order(self, x: Tensor) -> Tensor:
        ratio = self._end.std / self._start.std
        return ratio * x - self._end.alpha * (-self._h).expm1() * self._x0

    def _step(self, x: Tensor, weights: Tensor, differences: list[Tensor]) -> Tensor:
        change = torch.zeros_like(x)
        for weight, difference in zip(weights, differences, strict=True):
            change = change + weight * difference
        return self._first_order(x) - self._end.alpha * self._b * change

    def predicted(self, x: Tensor) -> Tensor:
        """Return x by UniP. As in the paper, a single difference has the weight 1/2 for every h."""
        count = len(self._differences)
        weights = torch.full((count,), 0.5)
        if count > 1:
            weights = torch.linalg.solve(self._matrix[:-1, :-1], self._vector[:-1])
        return self._step(x, weights, self._differences)

    def corrected(self, x: Tensor, x0: Tensor) -> Tensor:
        """Return x by UniC. `x0` is the estimate at the end of the step."""
        weights = torch.tensor([0.5])
        if self._differences:
            weights = torch.linalg.solve(self._matrix, self._vector)
        return self._step(x, weights, [*self._differences, x0 - self._x0])
