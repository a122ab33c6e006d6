"""Noise levels of flow models: a sigma is the share of the noise, from 0 to 1.

At sigma, x is (1 - sigma) x0 + sigma noise: Lipman et al. 2022 (arXiv:2210.02747), Liu et al. 2022
(arXiv:2209.03003). The network predicts noise - x0, and gets sigma itself as its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from engine.diffusion.samplers.noise_levels import NoiseLevels


@dataclass(frozen=True, slots=True, eq=False)
class FlowLevels(NoiseLevels):
    """Even times, shifted towards the noise: Esser et al. 2024 (arXiv:2403.03206), equation 23."""

    shift: float = 1.0

    @property
    def is_flow(self) -> bool:
        return True

    @property
    def first_timestep(self) -> float:
        return float(self.sigma_min)

    @property
    def last_timestep(self) -> float:
        return float(self.sigma_max)

    def sigma_at(self, timestep: Tensor) -> Tensor:
        return shifted(timestep, self.shift)

    def timestep_of(self, sigmas: Tensor) -> Tensor:
        return sigmas

    def timestep_near(self, sigma: float) -> float:
        return sigma

    def fractional_timestep_of(self, sigma: float) -> float:
        return sigma

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return float("inf")
        if percent >= 1.0:
            return 0.0
        return float(shifted(torch.tensor(1.0 - percent), self.shift))

    def noised(self, clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        return (1 - sigma) * clean + sigma * noise

    def ended(self, x: Tensor, sigma: Tensor) -> Tensor:
        return x / (1 - sigma) if 0 < sigma < 1 else x


def shifted(times: Tensor, shift: float) -> Tensor:
    """The sigmas of times from 0 to 1. A shift of exp(mu) is that of Flux by its mu."""
    return shift * times / (1 + (shift - 1) * times)


@lru_cache(maxsize=256)
def flow_levels(shift: float, count: int = 1000) -> FlowLevels:
    """The levels of that shift, of which there are `count`; the same arguments give the same."""
    sigmas = shifted(torch.arange(1, count + 1, dtype=torch.float64) / count, shift)
    return FlowLevels(sigmas.float(), sigmas.log().float(), shift=shift)
