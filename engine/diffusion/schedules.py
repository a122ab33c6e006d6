"""Noise levels: the model's own, and the schedules that pick some of them.

sigma is the standard deviation of the noise on a clean latent of unit scale, as in Karras et al.
2022 (arXiv:2206.00364). Everything is float32 on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TRAIN_STEPS = 1000
_BETA_START = 0.00085
_BETA_END = 0.012
_FULL_DENOISE = 0.9999
_MOST_STEPS = 1_000_000
_KARRAS_RHO = 7.0


def _model_sigmas() -> Tensor:
    """(1000,) sigma of each training step: betas linear in their square roots."""
    betas = torch.linspace(_BETA_START**0.5, _BETA_END**0.5, TRAIN_STEPS, dtype=torch.float64) ** 2
    kept = torch.cumprod(1 - betas, dim=0)
    return ((1 - kept) / kept).sqrt().float()


MODEL_SIGMAS = _model_sigmas()
_LOG_SIGMAS = MODEL_SIGMAS.log()
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
    return (most + ramp * (least - most)) ** _KARRAS_RHO


SCHEDULES: dict[str, Callable[[int], Tensor]] = {"normal": normal, "karras": karras}


def sigmas_for(scheduler: str, steps: int, denoise: float = 1.0) -> Tensor:
    """(steps + 1,) falling to 0; `denoise` below 1: the end of a longer one; 0: none.

    Raises ValueError where `denoise` is so small that the longer schedule has no bounds.
    """
    if denoise <= 0:
        return torch.empty(0)
    total = steps if denoise > _FULL_DENOISE else int(steps / denoise)
    if total > _MOST_STEPS:
        raise ValueError("denoise is too small for so many steps")
    schedule = SCHEDULES[scheduler](total)
    return torch.cat([schedule, torch.zeros(1)])[-(steps + 1) :]
