"""Schedules that nodes create, split and flip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.diffusion.samplers.schedules import (
    at_beta_quantiles,
    exponential_between,
    karras_between,
    log_interpolated,
)

_TURBO_STEPS = 10
_TURBO_STRIDE = 100
_FLIPPED_START = 1e-4
_LEAST_TAIL = 1e-5
_ALIGNED_TIMESTEPS = {
    "SD1": (999, 850, 736, 645, 545, 455, 343, 233, 124, 24, 0),
    "SDXL": (999, 845, 730, 587, 443, 310, 193, 116, 53, 13, 0),
}
_ALIGNED_SIGMAS = (700.0, 54.5, 15.886, 7.977, 4.248, 1.789, 0.981, 0.403, 0.173, 0.034, 0.002)
"""The sigmas of Stable Video Diffusion, which has no timesteps."""


@dataclass(frozen=True, slots=True, eq=False)
class Sigmas:
    """The sigmas of a schedule. This is the type SIGMAS of ComfyUI."""

    values: Tensor
    """(n,) float32 on the CPU. The values fall to 0 unless the schedule was split or flipped."""
    steps: int
    """The requested number of steps."""

    @classmethod
    def down_to_zero(cls, values: Tensor, steps: int) -> Self:
        """Append 0 to the values. Raises ValueError unless all values are finite and above 0."""
        if not bool((values.isfinite() & (values > 0)).all()):
            raise ValueError("the sigmas of a schedule must be finite and above 0")
        return cls(torch.cat([values, torch.zeros(1)]), steps)

    def split(self, step: int) -> tuple[Sigmas, Sigmas]:
        """Return the sigmas up to that step, and the sigmas from that step on."""
        before, after = self.values[: step + 1], self.values[step:]
        return replace(self, values=before), replace(self, values=after)

    def flipped(self) -> Sigmas:
        """Return the sigmas in reverse order.

        If the first sigma is then 0, it is replaced by a value slightly above 0, because samplers
        divide by the first sigma.
        """
        values = self.values.flip(0)
        if len(values) and values[0] == 0:
            values[0] = _FLIPPED_START
        return replace(self, values=values)


def karras(steps: int, sigma_max: float, sigma_min: float, rho: float) -> Sigmas:
    """Return the schedule of Karras et al. 2022 (arXiv:2206.00364, equation 5).

    Raises ValueError for a rho of 0.
    """
    if rho == 0:
        raise ValueError("rho must not be 0")
    values = karras_between(torch.tensor(sigma_max), torch.tensor(sigma_min), steps, rho)
    return Sigmas.down_to_zero(values, steps)


def exponential(steps: int, sigma_max: float, sigma_min: float) -> Sigmas:
    values = exponential_between(torch.tensor(sigma_max), torch.tensor(sigma_min), steps)
    return Sigmas.down_to_zero(values, steps)


def polyexponential(steps: int, sigma_max: float, sigma_min: float, rho: float) -> Sigmas:
    """Return sigmas whose logarithms follow a linear ramp to the power of rho."""
    first, last = torch.tensor(sigma_max).log(), torch.tensor(sigma_min).log()
    values = (torch.linspace(1, 0, steps) ** rho * (first - last) + last).exp()
    return Sigmas.down_to_zero(values, steps)


def variance_preserving(steps: int, beta_d: float, beta_min: float, eps_s: float) -> Sigmas:
    """Return sigmas that are evenly spaced in the time of a variance-preserving process.

    The process is from Song et al. 2021 (arXiv:2011.13456). sigma(t) is from table 1 of Karras et
    al. 2022 (arXiv:2206.00364).
    """
    time = torch.linspace(1, eps_s, steps)
    values = (beta_d * time**2 / 2 + beta_min * time).expm1().sqrt()
    return Sigmas.down_to_zero(values, steps)


def beta_quantiles(levels: NoiseLevels, steps: int, alpha: float, beta: float) -> Sigmas:
    """Return the model's sigmas at quantiles of Beta(alpha, beta). Both parameters are above 0."""
    return Sigmas.down_to_zero(at_beta_quantiles(levels, steps, alpha, beta), steps)


def laplace(steps: int, *, sigma_max: float, sigma_min: float, mu: float, beta: float) -> Sigmas:
    """Return sigmas whose logarithms are at quantiles of a Laplace distribution (arXiv:2407.03297).

    As in ComfyUI, no 0 is appended.
    """
    ramp = torch.linspace(0, 1, steps)
    tail = (1 - 2 * (0.5 - ramp).abs() + _LEAST_TAIL).log()
    values = (mu - beta * (0.5 - ramp).sign() * tail).exp().clamp(sigma_min, sigma_max)
    return replace(Sigmas.down_to_zero(values, steps), values=values)


def aligned(family: str, steps: int, denoise: float) -> Sigmas:
    """Return the ten steps of Sabour et al. 2024 (arXiv:2404.14507) for a family of models.

    For any other number of steps, the sigmas are interpolated in log sigma. `denoise` is the
    fraction of the steps that are used, counted from the end.
    """
    used_steps = round(steps * denoise)
    if used_steps == 0:
        return Sigmas(torch.empty(0), 0)
    timesteps = _ALIGNED_TIMESTEPS.get(family)
    aligned = STABLE_DIFFUSION.sigmas[list(timesteps)] if timesteps else _ALIGNED_SIGMAS
    values = log_interpolated(aligned, steps + 1)
    return Sigmas.down_to_zero(values[-(used_steps + 1) : -1], steps)


def turbo(levels: NoiseLevels, steps: int, denoise: float) -> Sigmas:
    """Return the sigmas at the timesteps 999, 899, ... of turbo models (arXiv:2311.17042)."""
    timesteps = torch.arange(_TURBO_STEPS, 0, -1) * _TURBO_STRIDE - 1
    first = _TURBO_STEPS - int(_TURBO_STEPS * denoise)
    return Sigmas.down_to_zero(levels.sigma_at(timesteps[first : first + steps].float()), steps)
