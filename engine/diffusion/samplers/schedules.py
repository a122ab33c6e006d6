"""Schedules: the sigmas along which a sampler steps, chosen within a model's noise levels.

The sigmas are float32 on the CPU, and fall from the largest sigma. `sigmas_for` appends a 0 unless
the schedule `has_end`. The functions from `webui_beta` on are schedules of the WebUI that do not
exist in ComfyUI or are different there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.sampler_lookup import schedule_of
from engine.graph.limits import MAX_SCHEDULE_SIGMAS
from engine.webui.sampler_names import SCHEDULER_OF

_FULL_DENOISE = 0.9999
_KARRAS_RHO = 7.0
_BETA_SHAPE = 0.6
_LINEAR_UP_TO = 0.025


def normal(levels: NoiseLevels, steps: int) -> Tensor:
    """Return sigmas whose timesteps are evenly spaced."""
    return levels.sigma_at(torch.linspace(levels.last_timestep, levels.first_timestep, steps))


def karras(levels: NoiseLevels, steps: int) -> Tensor:
    return karras_between(levels.sigma_max, levels.sigma_min, steps)


def karras_between(
    sigma_max: Tensor, sigma_min: Tensor, steps: int, rho: float = _KARRAS_RHO
) -> Tensor:
    """Return sigmas whose rho-th roots are evenly spaced (arXiv:2206.00364, equation 5)."""
    ramp = torch.linspace(0, 1, steps)
    first, last = float(sigma_max) ** (1 / rho), float(sigma_min) ** (1 / rho)
    sigmas: Tensor = (first + ramp * (last - first)) ** rho
    return sigmas


def exponential(levels: NoiseLevels, steps: int) -> Tensor:
    return exponential_between(levels.sigma_max, levels.sigma_min, steps)


def exponential_between(sigma_max: Tensor, sigma_min: Tensor, steps: int) -> Tensor:
    """Return sigmas whose logarithms are evenly spaced."""
    return torch.linspace(float(sigma_max.log()), float(sigma_min.log()), steps).exp()


def sgm_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Return sigmas at evenly spaced timesteps, without the model's smallest sigma."""
    timesteps = torch.linspace(levels.last_timestep, levels.first_timestep, steps + 1)
    return levels.sigma_at(timesteps[:-1])


def simple(levels: NoiseLevels, steps: int) -> Tensor:
    """Return the model's sigmas at evenly spaced indexes, from the largest on, each only once.

    The distance is rounded before it is multiplied, as in ComfyUI. For 38 steps and some other
    numbers of steps, this changes an index.
    """
    distance = len(levels.sigmas) / steps
    picked = [-(1 + int(i * distance)) for i in range(steps)]
    return levels.sigmas[torch.tensor(picked).unique_consecutive()]


def ddim_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Return every k-th sigma of the model, as in Song et al. 2020 (arXiv:2010.02502).

    If the number of steps does not divide 1000, there are one or more additional steps.
    """
    return levels.sigmas[1 :: max(len(levels.sigmas) // steps, 1)].flip(0)


def beta(levels: NoiseLevels, steps: int) -> Tensor:
    """Return the sigmas of timesteps at quantiles of Beta(0.6, 0.6) (arXiv:2407.12173)."""
    return at_beta_quantiles(levels, steps, _BETA_SHAPE, _BETA_SHAPE)


def at_beta_quantiles(levels: NoiseLevels, steps: int, first: float, second: float) -> Tensor:
    """Return the model's sigmas at quantiles of a beta distribution, without duplicates."""
    quantiles = 1 - np.linspace(0, 1, steps, endpoint=False)
    indices = stats.beta.ppf(quantiles, first, second) * (len(levels.sigmas) - 1)
    return levels.sigmas[torch.from_numpy(np.rint(indices)).long().unique_consecutive()]


def log_interpolated(sigmas: Sequence[float] | Tensor, count: int) -> Tensor:
    """Return `count` sigmas from the first to the last of `sigmas`, interpolated in log sigma."""
    known = np.log(np.asarray(sigmas, dtype=np.float64))
    positions = np.linspace(0, len(known) - 1, count)
    return torch.from_numpy(np.exp(np.interp(positions, np.arange(len(known)), known))).float()


def linear_quadratic(levels: NoiseLevels, steps: int) -> Tensor:
    """Return sigmas that fall linearly in the first half, and then quadratically
    (arXiv:2410.13720).
    """
    if steps == 1:
        return levels.sigma_max[None]
    i, middle = torch.arange(steps, dtype=torch.float64), steps // 2
    slope = _LINEAR_UP_TO / middle
    curve = (1 - slope * steps) / (steps - middle) ** 2
    done = slope * i + curve * (i - middle).clamp(min=0) ** 2
    return (1 - done).float() * levels.sigma_max


def kl_optimal(levels: NoiseLevels, steps: int) -> Tensor:
    """Return sigmas whose arc tangents are evenly spaced (arXiv:2404.14507, theorem 3.1)."""
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
    """Return the schedule of that name, in descending order.

    The result has `steps` + 1 sigmas, but some schedules have another length. If `denoise` is below
    1, the result is the end of a longer schedule. If `denoise` is 0, the result is empty. With
    `discards_penultimate_sigma`, the schedule is computed with one more step, and the sigma before
    the last is left out. Samplers that call the model between two sigmas need this.

    Raises ValueError if `denoise` is so small that the longer schedule would be too long.
    """
    if denoise <= 0:
        return torch.empty(0)
    is_full = denoise > _FULL_DENOISE
    total = steps if is_full else int(steps / denoise)
    if total > MAX_SCHEDULE_SIGMAS:
        raise ValueError("denoise is too small for this number of steps")
    sigmas = schedule_of(scheduler)(levels, total + discards_penultimate_sigma)
    if not SCHEDULER_OF[scheduler].has_end:
        sigmas = torch.cat([sigmas, torch.zeros(1)])
    if discards_penultimate_sigma:
        sigmas = torch.cat([sigmas[:-2], sigmas[-1:]])
    return sigmas if is_full else sigmas[-(steps + 1) :]


_ALIGNED = (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029)
_ALIGNED_XL = (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029)


def webui_beta(levels: NoiseLevels, steps: int) -> Tensor:
    """Return sigmas at quantiles of Beta(0.6, 0.6) between the largest and the smallest sigma.

    In Lee et al. 2024 (arXiv:2407.12173), timesteps are at these quantiles, not sigmas.
    """
    quantiles = torch.from_numpy(
        stats.beta.ppf(1 - np.linspace(0, 1, steps), _BETA_SHAPE, _BETA_SHAPE)
    )
    first, last = levels.sigma_max.double(), levels.sigma_min.double()
    return (last + quantiles * (first - last)).float()


def webui_kl_optimal(levels: NoiseLevels, steps: int) -> Tensor:
    """Return `steps` + 1 sigmas as in `kl_optimal`. The smallest sigma ends the schedule."""
    ramp = torch.arange(steps + 1) / steps
    first, last = math.atan(levels.sigma_max), math.atan(levels.sigma_min)
    return (ramp * last + (1 - ramp) * first).tan()


def webui_polyexponential(levels: NoiseLevels, steps: int) -> Tensor:
    """Return sigmas whose logarithms are evenly spaced: the power of the polynomial is 1."""
    return exponential_between(levels.sigma_max, levels.sigma_min, steps)


def align_your_steps(levels: NoiseLevels, steps: int) -> Tensor:  # noqa: ARG001 - schedules have this parameter
    """Return the ten steps of Sabour et al. 2024 (arXiv:2404.14507) for Stable Diffusion 1.

    For any other number of steps, the sigmas are interpolated in log sigma.
    """
    return log_interpolated(_ALIGNED, steps)


def align_your_steps_xl(levels: NoiseLevels, steps: int) -> Tensor:  # noqa: ARG001 - schedules have this parameter
    return log_interpolated(_ALIGNED_XL, steps)


def timesteps(levels: NoiseLevels, steps: int) -> Tensor:
    """Return the sigmas of every k-th timestep from the second on (arXiv:2010.02502).

    The schedule ends at the first timestep. If the number of steps does not divide 1000, there are
    one or more additional steps.
    """
    count = len(levels.sigmas)
    # If there are more steps than timesteps, every timestep is used.
    every = torch.arange(0, count, max(count // steps, 1)).add(1).clamp(max=count - 1).unique()
    return levels.sigmas[torch.cat([torch.zeros(1, dtype=torch.long), every]).flip(0)]


def time_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Return sigmas of evenly spaced timesteps. The schedule ends at the first timestep."""
    return normal(levels, len(timesteps(levels, steps)))


def normal_to_the_end(levels: NoiseLevels, steps: int) -> Tensor:
    """Return `steps` + 1 sigmas as in `normal`. The smallest sigma ends the schedule.

    This schedule is for samplers that use only the first and the last sigma.
    """
    return normal(levels, steps + 1)
