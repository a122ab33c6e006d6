"""Noise levels: the model's own, and the schedules that pick some of them.

sigma is the standard deviation of the noise on a clean latent of unit scale, as in Karras et al.
2022 (arXiv:2206.00364). Schedules are float32 on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from torch import Tensor

TRAIN_STEPS = 1000
_BETA_START = 0.00085
_BETA_END = 0.012
_FULL_DENOISE = 0.9999
_MOST_STEPS = 1_000_000
_KARRAS_RHO = 7.0
_BETA_SHAPE = 0.6
_LINEAR_UP_TO = 0.025


def _model_sigmas() -> Tensor:
    """(1000,) float64 sigma of each training step: betas linear in their square roots."""
    betas = torch.linspace(_BETA_START**0.5, _BETA_END**0.5, TRAIN_STEPS, dtype=torch.float64) ** 2
    kept = torch.cumprod(1 - betas, dim=0)
    return ((1 - kept) / kept).sqrt()


MODEL_SIGMAS = _model_sigmas().float()
_LOG_SIGMAS = _model_sigmas().log().float()
"""Rounded once: which of two training steps is nearest to the level halfway hangs on it."""
SIGMA_MIN = MODEL_SIGMAS[0]
SIGMA_MAX = MODEL_SIGMAS[-1]


def sigma_at(timestep: Tensor) -> Tensor:
    """sigma of fractional training steps, linear in log sigma."""
    below = timestep.floor().long()
    above = timestep.ceil().long()
    weight = timestep - below
    return ((1 - weight) * _LOG_SIGMAS[below] + weight * _LOG_SIGMAS[above]).exp()


def timestep_of(sigmas: Tensor) -> Tensor:
    """(n,) the training step nearest to each sigma in log sigma; whole, as in training."""
    return (sigmas.log()[:, None] - _LOG_SIGMAS[None, :]).abs().argmin(dim=1)


def normal(steps: int) -> Tensor:
    """Even in training steps."""
    return sigma_at(torch.linspace(TRAIN_STEPS - 1, 0, steps))


def karras(steps: int) -> Tensor:
    """Karras et al. 2022, equation 5, with rho 7."""
    ramp = torch.linspace(0, 1, steps)
    least, most = SIGMA_MIN ** (1 / _KARRAS_RHO), SIGMA_MAX ** (1 / _KARRAS_RHO)
    found: Tensor = (most + ramp * (least - most)) ** _KARRAS_RHO
    return found


def exponential(steps: int) -> Tensor:
    """Even in log sigma."""
    return torch.linspace(float(SIGMA_MAX.log()), float(SIGMA_MIN.log()), steps).exp()


def sgm_uniform(steps: int) -> Tensor:
    """Even in training steps, the last of them above the least."""
    return sigma_at(torch.linspace(TRAIN_STEPS - 1, 0, steps + 1)[:-1])


def simple(steps: int) -> Tensor:
    """The model's own levels, evenly picked from the largest down; each once."""
    picked = [-(1 + int(i * TRAIN_STEPS / steps)) for i in range(steps)]
    return MODEL_SIGMAS[torch.tensor(picked).unique_consecutive()]


def ddim_uniform(steps: int) -> Tensor:
    """Every k-th of the model's own levels, as Song et al. 2020 (arXiv:2010.02502) pick them.

    Steps that do not divide 1000 come out as one step, or a few, more.
    """
    return MODEL_SIGMAS[1 :: max(TRAIN_STEPS // steps, 1)].flip(0)


def beta(steps: int) -> Tensor:
    """Lee et al. 2024 (arXiv:2407.12173): training steps at quantiles of Beta(0.6, 0.6)."""
    quantiles = 1 - np.linspace(0, 1, steps, endpoint=False)
    timesteps = stats.beta.ppf(quantiles, _BETA_SHAPE, _BETA_SHAPE) * (TRAIN_STEPS - 1)
    return MODEL_SIGMAS[torch.from_numpy(np.rint(timesteps)).long().unique_consecutive()]


def linear_quadratic(steps: int) -> Tensor:
    """Polyak et al. 2024 (arXiv:2410.13720): half linear, then quadratic to 0."""
    if steps == 1:
        return SIGMA_MAX[None]
    i, middle = torch.arange(steps, dtype=torch.float64), steps // 2
    slope = _LINEAR_UP_TO / middle
    curve = (1 - slope * steps) / (steps - middle) ** 2
    done = slope * i + curve * (i - middle).clamp(min=0) ** 2
    return ((1 - done) * SIGMA_MAX).float()


def kl_optimal(steps: int) -> Tensor:
    """Sabour et al. 2024 (arXiv:2404.14507), theorem 3.1: even in the arc tangent of sigma."""
    ramp = torch.linspace(0, 1, steps)
    return ((1 - ramp) * SIGMA_MAX.atan() + ramp * SIGMA_MIN.atan()).tan()


SCHEDULES: dict[str, Callable[[int], Tensor]] = {
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
    scheduler: str, steps: int, denoise: float = 1.0, *, skips_penultimate: bool = False
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
    levels = (
        SCHEDULES[scheduler](total + 1)[:-1] if skips_penultimate else (SCHEDULES[scheduler](total))
    )
    sigmas = torch.cat([levels, torch.zeros(1)])
    return sigmas if whole else sigmas[-(steps + 1) :]
