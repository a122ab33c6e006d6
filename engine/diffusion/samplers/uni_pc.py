"""UniPC with data prediction in variance-preserving space (Zhao et al. 2023, arXiv:2302.04867).

All values are float32, also where 1 - alpha^2 loses precision, because ComfyUI does the same and
the pixels depend on this.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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


@dataclass(frozen=True, slots=True)
class _Coefficients:
    """The numbers of one step, which depend on its sigmas only."""

    std_ratio: float
    alpha: float
    expm1: float
    """exp(-h) - 1, where h is the growth of half the log-SNR."""
    b: float
    ratios: tuple[float, ...]
    """The places of the older marginals on the time axis of the step, from its start."""
    predictor: tuple[float, ...]
    """The weights of the differences to the older x0s."""
    corrector: tuple[float, ...]
    """The weights of these differences and of the difference to the new x0."""


@lru_cache(maxsize=4096)
def _coefficients(past: tuple[float, ...], end: float, *, exponential: bool) -> _Coefficients:
    """Return the numbers of the step to the sigma `end`. `past` are past sigmas, newest first.

    Jobs with equal schedules share them, because solving the equations takes a millisecond.
    """
    last = _Marginal(torch.tensor(end))
    start, *older = (_Marginal(torch.tensor(sigma)) for sigma in past)
    h = last.half_log_snr - start.half_log_snr
    ratios = [(each.half_log_snr - start.half_log_snr) / h for each in older]
    b = (-h).expm1() if exponential else -h
    matrix, vector = _conditions(torch.stack([*ratios, torch.tensor(1.0)]), h, b)
    # As in the paper, a single difference has the weight 1/2 for every h.
    predictor = torch.full((len(older),), 0.5)
    if len(older) > 1:
        predictor = torch.linalg.solve(matrix[:-1, :-1], vector[:-1])
    corrector = torch.linalg.solve(matrix, vector) if older else torch.tensor([0.5])
    return _Coefficients(
        float(last.std / start.std),
        float(last.alpha),
        float((-h).expm1()),
        float(b),
        tuple(map(float, ratios)),
        tuple(predictor.tolist()),
        tuple(corrector.tolist()),
    )


def _conditions(ratios: Tensor, h: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return matrix and vector of the linear equations for the weights of the differences."""
    phi = (-h).expm1() / -h - 1
    factorial = 1
    values: list[Tensor] = []
    for k in range(1, len(ratios) + 1):
        values.append(phi * factorial / b)
        factorial *= k + 1
        phi = phi / -h - 1 / factorial
    return torch.stack([ratios**k for k in range(len(ratios))]), torch.stack(values)


class _Step:
    """One step to the marginal `end`. `past` has past marginals with their x0s, newest first."""

    def __init__(
        self, past: list[tuple[_Marginal, Tensor]], end: _Marginal, *, exponential: bool
    ) -> None:
        (_, self._x0), *older = past
        sigmas = tuple(float(marginal.sigma) for marginal, _ in past)
        self._numbers = numbers = _coefficients(sigmas, float(end.sigma), exponential=exponential)
        self._differences = [
            (x0 - self._x0) / ratio for (_, x0), ratio in zip(older, numbers.ratios, strict=True)
        ]

    def _step(self, x: Tensor, weights: tuple[float, ...], differences: list[Tensor]) -> Tensor:
        numbers = self._numbers
        change = torch.zeros_like(x)
        for weight, difference in zip(weights, differences, strict=True):
            change = change + weight * difference
        first_order = numbers.std_ratio * x - numbers.alpha * numbers.expm1 * self._x0
        return first_order - numbers.alpha * numbers.b * change

    def predicted(self, x: Tensor) -> Tensor:
        """Return x by UniP."""
        return self._step(x, self._numbers.predictor, self._differences)

    def corrected(self, x: Tensor, x0: Tensor) -> Tensor:
        """Return x by UniC. `x0` is the estimate at the end of the step."""
        return self._step(x, self._numbers.corrector, [*self._differences, x0 - self._x0])
