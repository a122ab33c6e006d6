"""Schedules as values: what one node makes, others cut or turn round, and a sampler goes along."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.schedules import exponential_between, karras_between

_TURBO_STEPS = 10
_TURBO_STRIDE = 100
_LEAST_START = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Sigmas:
    """Levels on the CPU, falling to 0 where nothing was cut off; `steps` as they were asked for."""

    levels: Tensor
    steps: int

    @classmethod
    def down_to_zero(cls, levels: Tensor, steps: int) -> Self:
        """With the 0 added; raises ValueError for what no sampler can go along."""
        if not bool((levels.isfinite() & (levels > 0)).all()):
            raise ValueError("the levels of a schedule must be finite and above 0")
        return cls(torch.cat([levels, torch.zeros(1)]), steps)

    def split(self, step: int) -> tuple[Sigmas, Sigmas]:
        """The levels up to that step, and from it on."""
        return replace(self, levels=self.levels[: step + 1]), replace(
            self, levels=self.levels[step:]
        )

    def flipped(self) -> Sigmas:
        """Rising; from a little above 0, where there is no noise to tell from the picture."""
        levels = self.levels.flip(0)
        if len(levels) and levels[0] == 0:
            levels[0] = _LEAST_START
        return replace(self, levels=levels)


def karras(steps: int, most: float, least: float, rho: float) -> Sigmas:
    """Karras et al. 2022 (arXiv:2206.00364), equation 5."""
    if rho == 0:
        raise ValueError("rho must not be 0")
    levels = karras_between(torch.tensor(most), torch.tensor(least), steps, rho)
    return Sigmas.down_to_zero(levels, steps)


def exponential(steps: int, most: float, least: float) -> Sigmas:
    """Even in log sigma."""
    levels = exponential_between(torch.tensor(most), torch.tensor(least), steps)
    return Sigmas.down_to_zero(levels, steps)


def polyexponential(steps: int, most: float, least: float, rho: float) -> Sigmas:
    """A power of an even ramp in log sigma; `exponential` where rho is 1."""
    top, bottom = torch.tensor(most).log(), torch.tensor(least).log()
    levels = (torch.linspace(1, 0, steps) ** rho * (top - bottom) + bottom).exp()
    return Sigmas.down_to_zero(levels, steps)


def variance_preserving(steps: int, beta_d: float, beta_min: float, eps_s: float) -> Sigmas:
    """Song et al. 2021 (arXiv:2011.13456) in sigma: Karras et al. 2022, table 1, even in time."""
    time = torch.linspace(1, eps_s, steps)
    levels = (beta_d * time**2 / 2 + beta_min * time).expm1().sqrt()
    return Sigmas.down_to_zero(levels, steps)


def turbo(levels: NoiseLevels, steps: int, denoise: float) -> Sigmas:
    """Sauer et al. 2023 (arXiv:2311.17042): training steps 999, 899, ... that turbo models know."""
    known = torch.arange(_TURBO_STEPS, 0, -1) * _TURBO_STRIDE - 1
    first = _TURBO_STEPS - int(_TURBO_STEPS * denoise)
    return Sigmas.down_to_zero(levels.sigma_at(known[first : first + steps].float()), steps)
