"""The noise levels that a model was trained on.

sigma is the standard deviation of the noise on a clean latent of unit scale, as in Karras et al.
2022 (arXiv:2206.00364). Levels are float32 on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TRAIN_STEPS = 1000
_BETA_START = 0.00085
_BETA_END = 0.012


@dataclass(frozen=True, slots=True, eq=False)
class NoiseLevels:
    """(n,) sigma of each training step, rising, and its logarithm."""

    sigmas: Tensor
    log_sigmas: Tensor

    @classmethod
    def of(cls, sigmas: Tensor) -> NoiseLevels:
        """From float64, rounded once: which of two training steps is nearest to the level
        halfway hangs on it.
        """
        return cls(sigmas.float(), sigmas.log().float())

    @property
    def least(self) -> Tensor:
        return self.sigmas[0]

    @property
    def most(self) -> Tensor:
        return self.sigmas[-1]

    @property
    def last_step(self) -> int:
        return len(self.sigmas) - 1

    def sigma_at(self, timestep: Tensor) -> Tensor:
        """sigma of fractional training steps, linear in log sigma."""
        below = timestep.floor().long()
        above = timestep.ceil().long()
        weight = timestep - below
        return ((1 - weight) * self.log_sigmas[below] + weight * self.log_sigmas[above]).exp()

    def timestep_of(self, sigmas: Tensor) -> Tensor:
        """(n,) the training step nearest to each sigma in log sigma; whole, as in training."""
        return (sigmas.log()[:, None] - self.log_sigmas[None, :]).abs().argmin(dim=1)

    def sigma_after(self, share: float) -> float:
        """sigma where a share of 0..1 of the training steps is done, counted from the most noise.

        Infinite at 0 and 0 at 1, so that a range from 0 to 1 holds every level.
        """
        if share <= 0.0:
            return float("inf")
        if share >= 1.0:
            return 0.0
        return float(self.sigma_at(torch.tensor((1.0 - share) * self.last_step)))


def scaled_linear_sigmas() -> Tensor:
    """(1000,) float64: Stable Diffusion's betas, linear in their square roots."""
    betas = torch.linspace(_BETA_START**0.5, _BETA_END**0.5, TRAIN_STEPS, dtype=torch.float64) ** 2
    kept = torch.cumprod(1 - betas, dim=0)
    return ((1 - kept) / kept).sqrt()


STABLE_DIFFUSION = NoiseLevels.of(scaled_linear_sigmas())
