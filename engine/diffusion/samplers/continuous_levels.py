"""Noise levels of models that were trained on every sigma of a range."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.samplers.noise_levels import NoiseLevels

_LEVELS = 1000
_LOG_SCALE = 0.25
Time: TypeAlias = Literal["log", "angle"]
"""What the model is told of a sigma: a quarter of its logarithm, as Karras et al. 2022
(arXiv:2206.00364), table 1, or the angle whose tangent it is, as a part of a right angle."""


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousLevels(NoiseLevels):
    """Sigmas that are even in their logarithm stand for the range; times are no whole numbers."""

    time: Time = "log"

    @property
    def first_timestep(self) -> float:
        return float(self.timestep_of(self.sigma_min))

    @property
    def last_timestep(self) -> float:
        return float(self.timestep_of(self.sigma_max))

    def sigma_at(self, timestep: Tensor) -> Tensor:
        if self.time == "log":
            return (timestep / _LOG_SCALE).exp()
        return (timestep * math.pi / 2).tan()

    def timestep_of(self, sigmas: Tensor) -> Tensor:
        if self.time == "log":
            return sigmas.log() * _LOG_SCALE
        return sigmas.atan() / math.pi * 2

    def timestep_near(self, sigma: float) -> float:
        return float(self.timestep_of(torch.tensor(sigma)))

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0.0:
            return float("inf")
        if percent >= 1.0:
            return 0.0
        first, last = math.log(self.sigma_min), math.log(self.sigma_max)
        return math.exp((last - first) * (1.0 - percent) + first)


@lru_cache(maxsize=64)
def continuous_levels(sigma_max: float, sigma_min: float, time: Time) -> ContinuousLevels:
    """The levels between two sigmas; the same arguments give the same object while it is used."""
    logs = torch.linspace(math.log(sigma_min), math.log(sigma_max), _LEVELS)
    return ContinuousLevels(logs.exp(), logs, time=time)
