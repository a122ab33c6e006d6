"""Schedules: which of a model's noise levels the sampler goes, from the largest down.

All are float32 on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from engine.diffusion.samplers.noise_levels import NoiseLevels

_FULL_DENOISE = 0.9999
_MOST_STEPS = 1_000_000
_KARRAS_RHO = 7.0
_BETA_SHAPE = 0.6
_LINEAR_UP_TO = 0.025


def normal(levels: NoiseLevels, steps: int) -> Tensor:
    """Even in training steps."""
    return levels.sigma_at(torch.linspace(levels.last_step, levels.first_step, steps))


def karras(levels: NoiseLevels, steps: int) -> Tensor:
    """Karras et al. 2022, equation 5, with rho 7."""
    return karras_between(levels.most, levels.least, steps)


def karras_between(most: Tensor, least: Tensor, steps: int, rho: float = _KARRAS_RHO) -> Tensor:
    """Karras et al. 2022, equation 5: even in the rho-th root of sigma."""
    ramp = torch.linspace(0, 1, steps)
    first, last = float(most) ** (1 / rho), float(least) ** (1 / rho)
    found: Tensor = (first + ramp * (last - first)) ** rho
    return found


def exponential(levels: NoiseLevels, steps: int) -> Tensor:
    """Even in log sigma."""
    return exponential_between(levels.most, levels.least, steps)


def exponential_between(most: Tensor, least: Tensor, steps: int) -> Tensor:
    """Even in log sigma."""
    return torch.linspace(float(most.log()), float(least.log()), steps).exp()


def sgm_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Even in training steps, the last of them above the least."""
    steps_down = torch.linspace(levels.last_step, levels.first_step, steps + 1)
    return levels.sigma_at(steps_down[:-1])


def simple(levels: NoiseLevels, steps: int) -> Tensor:
    """The model's own levels, evenly picked from the largest down; each once."""
    picked = [-(1 + int(i * len(levels.sigmas) / steps)) for i in range(steps)]
    return levels.sigmas[torch.tensor(picked).unique_consecutive()]


def ddim_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Every k-th of the model's own levels, as Song et al. 2020 (arXiv:2010.02502) pick them.

    Steps that do not divide 1000 come out as one step, or a few, more.
    """
    return levels.sigmas[1 :: max(len(levels.sigmas) // steps, 1)].flip(0)


def beta(levels: NoiseLevels, steps: int) -> Tensor:
    """Lee et al. 2024 (arXiv:2407.12173): training steps at quantiles of Beta(0.6, 0.6)."""
    quantiles = 1 - np.linspace(0, 1, steps, endpoint=False)
    places = stats.beta.ppf(quantiles, _BETA_SHAPE, _BETA_SHAPE) * (len(levels.sigmas) - 1)
    return levels.sigmas[torch.from_numpy(np.rint(places)).long().unique_consecutive()]


def linear_quadratic(levels: NoiseLevels, steps: int) -> Tensor:
    """Polyak et al. 2024 (arXiv:2410.13720): half linear, then quadratic to 0."""
    if steps == 1:
        return levels.most[None]
    i, middle = torch.arange(steps, dtype=torch.float64), steps // 2
    slope = _LINEAR_UP_TO / middle
    curve = (1 - slope * steps) / (steps - middle) ** 2
    done = slope * i + curve * (i - middle).clamp(min=0) ** 2
    return (1 - done).float() * levels.most


def kl_optimal(levels: NoiseLevels, steps: int) -> Tensor:
    """Sabour et al. 2024 (arXiv:2404.14507), theorem 3.1: even in the arc tangent of sigma."""
    ramp = torch.arange(steps) / max(steps - 1, 1)
    most, least = math.atan(levels.most), math.atan(levels.least)
    return (ramp * least + (1 - ramp) * most).tan()


SCHEDULES: dict[str, Callable[[NoiseLevels, int], Tensor]] = {
    "normal": normal,
    "karras": karras,
    "exponential": exponential,
    "sgm_uniform": sgm_uniform,
    "simple": simple,
    "ddim_uniform": ddim_uniform,
    "beta": beta,
    "linear_quadratic": linear_quadratic,
    "kl_optimal": kl_optimal,
}


def sigmas_for(
    levels: NoiseLevels,
    scheduler: str,
    steps: int,
    denoise: float = 1.0,
    *,
    skips_penultimate: bool = False,
) -> Tensor:
    """Falling to 0: (steps + 1,), where the schedule has neither more nor fewer of its own.

    `denoise` below 1: the end of a longer one; 0: none. `skips_penultimate`: one step is added and
    the last level above 0 left out, for samplers that ask between levels.

    Raises ValueError where `denoise` is so small that the longer schedule has no bounds.
    """
    if denoise <= 0:
        return torch.empty(0)
    whole = denoise > _FULL_DENOISE
    total = steps if whole else int(steps / denoise)
    if total > _MOST_STEPS:
        raise ValueError("denoise is too small for so many steps")
    schedule = SCHEDULES[scheduler]
    picked = schedule(levels, total + 1)[:-1] if skips_penultimate else schedule(levels, total)
    sigmas = torch.cat([picked, torch.zeros(1)])
    return sigmas if whole else sigmas[-(steps + 1) :]
