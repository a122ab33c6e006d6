"""Schedules: the sigmas that a sampler steps through, chosen within a model's noise levels.

All are float32 on the CPU. They fall from the largest sigma; `sigmas_for` adds a 0 behind those
that have no end of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from engine.diffusion.samplers.lookup import schedule_of
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.graph.limits import MAX_SCHEDULE_SIGMAS
from engine.webui.sampler_names import SCHEDULER_OF

_FULL_DENOISE = 0.9999
_KARRAS_RHO = 7.0
_BETA_SHAPE = 0.6
_LINEAR_UP_TO = 0.025


def normal(levels: NoiseLevels, steps: int) -> Tensor:
    """Evenly spaced in timesteps."""
    return levels.sigma_at(torch.linspace(levels.last_timestep, levels.first_timestep, steps))


def karras(levels: NoiseLevels, steps: int) -> Tensor:
    """Karras et al. 2022 (arXiv:2206.00364), equation 5, with a rho of 7."""
    return karras_between(levels.sigma_max, levels.sigma_min, steps)


def karras_between(
    sigma_max: Tensor, sigma_min: Tensor, steps: int, rho: float = _KARRAS_RHO
) -> Tensor:
    """Karras et al. 2022 (arXiv:2206.00364), equation 5: even in the rho-th root of sigma."""
    ramp = torch.linspace(0, 1, steps)
    first, last = float(sigma_max) ** (1 / rho), float(sigma_min) ** (1 / rho)
    sigmas: Tensor = (first + ramp * (last - first)) ** rho
    return sigmas


def exponential(levels: NoiseLevels, steps: int) -> Tensor:
    """Evenly spaced in log sigma."""
    return exponential_between(levels.sigma_max, levels.sigma_min, steps)


def exponential_between(sigma_max: Tensor, sigma_min: Tensor, steps: int) -> Tensor:
    """Evenly spaced in log sigma."""
    return torch.linspace(float(sigma_max.log()), float(sigma_min.log()), steps).exp()


def sgm_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Evenly spaced in timesteps; the last sigma is above the model's smallest."""
    timesteps = torch.linspace(levels.last_timestep, levels.first_timestep, steps + 1)
    return levels.sigma_at(timesteps[:-1])


def simple(levels: NoiseLevels, steps: int) -> Tensor:
    """The model's own sigmas, picked evenly from the largest down, none of them twice."""
    picked = [-(1 + int(i * len(levels.sigmas) / steps)) for i in range(steps)]
    return levels.sigmas[torch.tensor(picked).unique_consecutive()]


def ddim_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Every k-th of the model's own sigmas, as in Song et al. 2020 (arXiv:2010.02502).

    A number of steps that does not divide 1000 gives one step more, or several.
    """
    return levels.sigmas[1 :: max(len(levels.sigmas) // steps, 1)].flip(0)


def beta(levels: NoiseLevels, steps: int) -> Tensor:
    """Lee et al. 2024 (arXiv:2407.12173): timesteps at quantiles of Beta(0.6, 0.6)."""
    return at_beta_quantiles(levels, steps, _BETA_SHAPE, _BETA_SHAPE)


def at_beta_quantiles(levels: NoiseLevels, steps: int, first: float, second: float) -> Tensor:
    """The model's sigmas at quantiles of a beta distribution, none of them twice."""
    quantiles = 1 - np.linspace(0, 1, steps, endpoint=False)
    indices = stats.beta.ppf(quantiles, first, second) * (len(levels.sigmas) - 1)
    return levels.sigmas[torch.from_numpy(np.rint(indices)).long().unique_consecutive()]


def log_interpolated(sigmas: Sequence[float] | Tensor, count: int) -> Tensor:
    """(count,) from the first to the last of the sigmas, with log sigma interpolated between."""
    known = np.log(np.asarray(sigmas, dtype=np.float64))
    places = np.linspace(0, len(known) - 1, count)
    return torch.from_numpy(np.exp(np.interp(places, np.arange(len(known)), known))).float()


def linear_quadratic(levels: NoiseLevels, steps: int) -> Tensor:
    """Polyak et al. 2024 (arXiv:2410.13720): the first half linear, then quadratic to 0."""
    if steps == 1:
        return levels.sigma_max[None]
    i, middle = torch.arange(steps, dtype=torch.float64), steps // 2
    slope = _LINEAR_UP_TO / middle
    curve = (1 - slope * steps) / (steps - middle) ** 2
    done = slope * i + curve * (i - middle).clamp(min=0) ** 2
    return (1 - done).float() * levels.sigma_max


def kl_optimal(levels: NoiseLevels, steps: int) -> Tensor:
    """Sabour et al. 2024 (arXiv:2404.14507), theorem 3.1: even in the arc tangent of sigma."""
    ramp = torch.arange(steps) / max(steps - 1, 1)
    first, last = math.atan(levels.sigma_max), math.atan(levels.sigma_min)
    return (ramp * last + (1 - ramp) * first).tan()


def sigmas_for(
    levels: NoiseLevels,
    scheduler: str,
    steps: int,
    denoise: float = 1.0,
    *,
    discards_penultimate_sigma: bool = False,
) -> Tensor:
    """The schedule of that name, falling to its end: (steps + 1,), or a length that it sets itself.

    A `denoise` below 1 gives the end of a longer schedule, and 0 gives no sigmas at all.
    `discards_penultimate_sigma` adds a step and leaves out the sigma before the end, for samplers
    that call the model between two sigmas.

    Raises ValueError where `denoise` is so small that the longer schedule has no bounds.
    """
    if denoise <= 0:
        return torch.empty(0)
    is_full = denoise > _FULL_DENOISE
    total = steps if is_full else int(steps / denoise)
    if total > MAX_SCHEDULE_SIGMAS:
        raise ValueError("denoise is too small for so many steps")
    sigmas = schedule_of(scheduler)(levels, total + discards_penultimate_sigma)
    if not SCHEDULER_OF[scheduler].has_end:
        sigmas = torch.cat([sigmas, torch.zeros(1)])
    if discards_penultimate_sigma:
        sigmas = torch.cat([sigmas[:-2], sigmas[-1:]])
    return sigmas if is_full else sigmas[-(steps + 1) :]
