"""Noise levels of models: the sigmas on which a model was trained.

In models that predict noise, sigma is the standard deviation of the noise on a clean latent of unit
variance, as in Karras et al. 2022 (arXiv:2206.00364). A model was trained either on one sigma for
each timestep, or on all sigmas of a range.

In flow models, sigma is the share of the noise, from 0 to 1: x is (1 - sigma) x0 + sigma noise. See
Lipman et al. 2022 (arXiv:2210.02747) and Liu et al. 2022 (arXiv:2209.03003). The network predicts
noise - x0, and its time input is sigma.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from engine.diffusion.host_copies import copied

_TIMESTEPS = 1000
_BETA_START = 0.00085
_BETA_END = 0.012
_CONSISTENCY_TIMESTEPS = 50
_LEAST_SIGMA = 1e-9
_TERMINAL_ALPHA_CUMPROD = 4.8973451890853435e-08
"""The last alpha_cumprod for a zero terminal SNR, as in ComfyUI. 0 gives an infinite sigma."""


@dataclass(frozen=True, slots=True, eq=False)
class NoiseLevels:
    """The sigmas of all timesteps, or of every `stride`-th timestep, in ascending order."""

    sigmas: Tensor
    """(n,) float32 on the CPU."""
    log_sigmas: Tensor
    """(n,) float32 on the CPU."""
    stride: int = 1

    @classmethod
    def of(cls, sigmas: Tensor, *, stride: int = 1) -> NoiseLevels:
        """Return the noise levels of float64 sigmas (1000,).

        Each value is rounded to float32 only once. For a sigma halfway between two timesteps,
        the result of `timestep_of` depends on this rounding.
        """
        strided = sigmas[stride - 1 :: stride]
        return cls(strided.float(), strided.log().float(), stride)

    @property
    def is_flow(self) -> bool:
        """Whether x is a weighted mean of picture and noise, not a sum."""
        return False

    @property
    def sigma_min(self) -> Tensor:
        return self.sigmas[0]

    @property
    def sigma_max(self) -> Tensor:
        return self.sigmas[-1]

    @property
    def first_timestep(self) -> float:
        """The timestep of `sigma_min`."""
        return self.stride - 1

    @property
    def last_timestep(self) -> float:
        """The timestep of `sigma_max`."""
        return len(self.sigmas) * self.stride - 1

    def sigma_at(self, timestep: Tensor) -> Tensor:
        """Return the sigmas of fractional timesteps, interpolated in log sigma."""
        index = ((timestep - self.first_timestep) / self.stride).clamp(min=0)
        below = index.floor().long()
        above = index.ceil().long()
        weight = index - below
        return ((1 - weight) * self.log_sigmas[below] + weight * self.log_sigmas[above]).exp()

    def timestep_of(self, sigmas: Tensor) -> Tensor:
        """Return (n,): the integer timestep that is nearest to each sigma in log sigma."""
        log_sigmas = copied(self.log_sigmas, sigmas.device)
        nearest = (sigmas.log()[:, None] - log_sigmas[None, :]).abs().argmin(dim=1)
        return nearest * self.stride + self.first_timestep

    def timestep_near(self, sigma: float) -> float:
        """Return the result of `timestep_of` for one sigma."""
        return _timestep_near(self, sigma)

    def fractional_timestep_of(self, sigma: float) -> float:
        """Return the fractional timestep of a sigma, interpolated in log sigma."""
        return _fractional_timestep(self, sigma)

    def noised(self, clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        """Add noise of unit variance to a clean latent at that sigma."""
        return clean + noise * sigma

    def ended(self, x: Tensor, sigma: Tensor) -> Tensor:  # noqa: ARG002 - used by subclasses
        """Return the result of a sampling that ended at that sigma with the latent `x`."""
        return x

    def percent_to_sigma(self, percent: float) -> float:
        """Return the sigma at a fraction (0..1) of the timesteps, counted from the largest sigma.

        The sigma is infinite at 0, and 0 at 1, so that a range from 0 to 1 includes every sigma.
        """
        if percent <= 0.0:
            return float("inf")
        if percent >= 1.0:
            return 0.0
        return float(self.sigma_at(torch.tensor((1.0 - percent) * self.last_timestep)))


@lru_cache(maxsize=4096)
def _timestep_near(levels: NoiseLevels, sigma: float) -> int:
    return int(levels.timestep_of(torch.tensor([sigma])))


@lru_cache(maxsize=4096)
def _fractional_timestep(levels: NoiseLevels, sigma: float) -> float:
    log_sigmas = levels.log_sigmas.double().numpy()
    index = np.interp(math.log(max(sigma, _LEAST_SIGMA)), log_sigmas, np.arange(len(log_sigmas)))
    return float(index) * levels.stride + levels.first_timestep


def scaled_linear_sigmas() -> Tensor:
    """Return Stable Diffusion's sigmas, (1000,) float64. The betas' square roots are linear."""
    betas = torch.linspace(_BETA_START**0.5, _BETA_END**0.5, _TIMESTEPS, dtype=torch.float64) ** 2
    alphas_cumprod = torch.cumprod(1 - betas, dim=0)
    return ((1 - alphas_cumprod) / alphas_cumprod).sqrt()


def zero_terminal_snr(sigmas: Tensor) -> Tensor:
    """Rescale sigmas to a zero terminal SNR (Lin et al. 2023, arXiv:2305.08891, algorithm 1)."""
    alphas_cumprod_sqrt = 1 / (sigmas**2 + 1).sqrt()
    first, last = alphas_cumprod_sqrt[0], alphas_cumprod_sqrt[-1]
    alphas_cumprod = ((alphas_cumprod_sqrt - last) * first / (first - last)) ** 2
    alphas_cumprod[-1] = _TERMINAL_ALPHA_CUMPROD
    return ((1 - alphas_cumprod) / alphas_cumprod).sqrt()


def stable_diffusion(*, zero_terminal: bool = False, consistency: bool = False) -> NoiseLevels:
    """Return Stable Diffusion's noise levels. Equal arguments give the same object.

    With `consistency`, only every 20th timestep is used. Latent consistency models are distilled on
    these timesteps (Luo et al. 2023, arXiv:2310.04378, section 4.3).
    """
    return _stable_diffusion(zero_terminal, consistency)


@cache
def _stable_diffusion(zero_terminal: bool, consistency: bool) -> NoiseLevels:
    sigmas = scaled_linear_sigmas()
    if zero_terminal:
        sigmas = zero_terminal_snr(sigmas)
    stride = _TIMESTEPS // _CONSISTENCY_TIMESTEPS if consistency else 1
    return NoiseLevels.of(sigmas, stride=stride)


STABLE_DIFFUSION = stable_diffusion()


_LEVELS = 1000
_LOG_SCALE = 0.25
Time: TypeAlias = Literal["log", "angle"]
"""The kind of time that the network gets for a sigma.

- log: a quarter of the logarithm of sigma, as in table 1 of Karras et al. 2022 (arXiv:2206.00364)
- angle: the arc tangent of sigma, as a fraction of a right angle
"""


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousLevels(NoiseLevels):
    """Noise levels of models that were trained on all sigmas of a range.

    The range is represented by sigmas with evenly spaced logarithms. Times are not integers.
    """

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
    """Return the levels between two sigmas. Equal arguments give the same object while cached."""
    logs = torch.linspace(math.log(sigma_min), math.log(sigma_max), _LEVELS)
    return ContinuousLevels(logs.exp(), logs, time=time)


@dataclass(frozen=True, slots=True, eq=False)
class FlowLevels(NoiseLevels):
    """Levels at evenly spaced times, shifted towards the noise (arXiv:2403.03206, equation 23)."""

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
        return self._shifted(timestep)

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
        return float(self._shifted(torch.tensor(1.0 - percent, dtype=torch.float64)))

    def _shifted(self, times: Tensor) -> Tensor:
        return shifted_sigmas(times, self.shift, len(self.sigmas))

    def noised(self, clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        return (1 - sigma) * clean + sigma * noise

    def ended(self, x: Tensor, sigma: Tensor) -> Tensor:
        return x / (1 - sigma) if 0 < sigma < 1 else x


FLUX_LEVELS = 10_000
"""The number of noise levels of Flux.1 dev that schedules can use."""


def shifted_sigmas(times: Tensor, shift: float, count: int) -> Tensor:
    """Return the sigmas of times from 0 to 1. For Flux, the shift is exp(mu).

    Both forms of the equation are those of ComfyUI. They differ in the last bit, on which the noise
    of Brownian paths depends.
    """
    if count == FLUX_LEVELS:
        return shift / (shift + (1 / times - 1))
    return shift * times / (1 + (shift - 1) * times)


@lru_cache(maxsize=256)
def flow_levels(shift: float, count: int = 1000) -> FlowLevels:
    """Return `count` levels with that shift. Equal arguments give the same object while cached."""
    sigmas = shifted_sigmas(torch.arange(1, count + 1) / count, shift, count)
    return FlowLevels(sigmas, sigmas.log(), shift=shift)
