"""The noise levels that a model was trained on.

sigma is the standard deviation of the noise on a clean latent of unit scale, as in Karras et al.
2022 (arXiv:2206.00364). Levels are float32 on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

TRAIN_STEPS = 1000
_BETA_START = 0.00085
_BETA_END = 0.012
_CONSISTENCY_LEVELS = 50
_LEAST_SIGNAL = 4.8973451890853435e-08
"""The share of the signal's power at the last step of a zero terminal SNR: with none, sigma would
be infinite. The value that ComfyUI takes.
"""


@dataclass(frozen=True, slots=True, eq=False)
class NoiseLevels:
    """(n,) sigma of each training step, or of every `stride`-th, rising, and its logarithm."""

    sigmas: Tensor
    log_sigmas: Tensor
    stride: int = 1

    @classmethod
    def of(cls, sigmas: Tensor, *, stride: int = 1) -> NoiseLevels:
        """From float64, rounded once: which of two training steps is nearest to the level
        halfway hangs on it.
        """
        kept = sigmas[stride - 1 :: stride]
        return cls(kept.float(), kept.log().float(), stride)

    @property
    def least(self) -> Tensor:
        return self.sigmas[0]

    @property
    def most(self) -> Tensor:
        return self.sigmas[-1]

    @property
    def first_step(self) -> int:
        """The training step of the least sigma."""
        return self.stride - 1

    @property
    def last_step(self) -> int:
        """The training step of the most."""
        return len(self.sigmas) * self.stride - 1

    def sigma_at(self, timestep: Tensor) -> Tensor:
        """sigma of fractional training steps, linear in log sigma."""
        place = ((timestep - self.first_step) / self.stride).clamp(min=0)
        below = place.floor().long()
        above = place.ceil().long()
        weight = place - below
        return ((1 - weight) * self.log_sigmas[below] + weight * self.log_sigmas[above]).exp()

    def timestep_of(self, sigmas: Tensor) -> Tensor:
        """(n,) the training step nearest to each sigma in log sigma; whole, as in training."""
        nearest = (sigmas.log()[:, None] - self.log_sigmas[None, :]).abs().argmin(dim=1)
        return nearest * self.stride + self.first_step

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


def zero_terminal_snr(sigmas: Tensor) -> Tensor:
    """Levels stretched until nothing of the signal is left at the last: Lin et al. 2023
    (arXiv:2305.08891), algorithm 1.
    """
    signal = 1 / (sigmas**2 + 1).sqrt()
    first, last = signal[0], signal[-1]
    kept = ((signal - last) * first / (first - last)) ** 2
    kept[-1] = _LEAST_SIGNAL
    return ((1 - kept) / kept).sqrt()


def stable_diffusion(*, zero_terminal: bool = False, consistency: bool = False) -> NoiseLevels:
    """Stable Diffusion's levels; the same arguments give the same object.

    `consistency`: every 20th training step, the ones that latent consistency models are distilled
    on (Luo et al. 2023, arXiv:2310.04378, section 4.3).
    """
    return _stable_diffusion(zero_terminal, consistency)


@cache
def _stable_diffusion(zero_terminal: bool, consistency: bool) -> NoiseLevels:
    sigmas = scaled_linear_sigmas()
    if zero_terminal:
        sigmas = zero_terminal_snr(sigmas)
    return NoiseLevels.of(sigmas, stride=TRAIN_STEPS // _CONSISTENCY_LEVELS if consistency else 1)


STABLE_DIFFUSION = stable_diffusion()
