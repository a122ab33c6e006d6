"""Schedules of the WebUI that ComfyUI has not, or has otherwise."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.schedules import exponential_between, log_interpolated, normal

_BETA_SHAPE = 0.6
_ALIGNED = (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029)
_ALIGNED_XL = (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029)


def beta(levels: NoiseLevels, steps: int) -> Tensor:
    """Sigmas at quantiles of Beta(0.6, 0.6) between both ends (Lee et al. 2024, arXiv:2407.12173,
    has timesteps there).
    """
    quantiles = torch.from_numpy(
        stats.beta.ppf(1 - np.linspace(0, 1, steps), _BETA_SHAPE, _BETA_SHAPE)
    )
    first, last = levels.sigma_max.double(), levels.sigma_min.double()
    return (last + quantiles * (first - last)).float()


def kl_optimal(levels: NoiseLevels, steps: int) -> Tensor:
    """Sabour et al. 2024 (arXiv:2404.14507), theorem 3.1, with the smallest sigma as its end."""
    ramp = torch.arange(steps + 1) / steps
    first, last = math.atan(levels.sigma_max), math.atan(levels.sigma_min)
    return (ramp * last + (1 - ramp) * first).tan()


def polyexponential(levels: NoiseLevels, steps: int) -> Tensor:
    """Evenly spaced in log sigma: its power is 1."""
    return exponential_between(levels.sigma_max, levels.sigma_min, steps)


def align_your_steps(levels: NoiseLevels, steps: int) -> Tensor:  # noqa: ARG001  # as all take
    """Sabour et al. 2024 (arXiv:2404.14507): the authors' ten steps for Stable Diffusion 1, with
    log sigma interpolated for any other number.
    """
    return log_interpolated(_ALIGNED, steps)


def align_your_steps_xl(levels: NoiseLevels, steps: int) -> Tensor:  # noqa: ARG001  # as all take
    """`align_your_steps` with the authors' sigmas for Stable Diffusion XL."""
    return log_interpolated(_ALIGNED_XL, steps)


def timesteps(levels: NoiseLevels, steps: int) -> Tensor:
    """Every k-th timestep from the second up, as in Song et al. 2020 (arXiv:2010.02502), and the
    first as its end. A number of steps that does not divide 1000 gives one more, or several.
    """
    count = len(levels.sigmas)
    # More steps than timesteps take every one.
    every = torch.arange(0, count, max(count // steps, 1)).add(1).clamp(max=count - 1).unique()
    return levels.sigmas[torch.cat([torch.zeros(1, dtype=torch.long), every]).flip(0)]


def time_uniform(levels: NoiseLevels, steps: int) -> Tensor:
    """Evenly spaced in timesteps, from the last to the first, which is its end."""
    return normal(levels, len(timesteps(levels, steps)))


def normal_to_the_end(levels: NoiseLevels, steps: int) -> Tensor:
    """`normal` with the smallest sigma as its end, for samplers that take both ends alone."""
    return normal(levels, steps + 1)
