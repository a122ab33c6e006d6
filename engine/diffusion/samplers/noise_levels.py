"""The noise levels that a model was trained on: one sigma for each timestep.

sigma is the standard deviation of the noise on a clean latent of unit variance, as in Karras et al.
2022 (arXiv:2206.00364).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import torch
from torch import Tensor

_TIMESTEPS = 1000
_BETA_START = 0.00085
_BETA_END = 0.012
_CONSISTENCY_TIMESTEPS = 50
_LEAST_SIGMA = 1e-9
_TERMINAL_ALPHA_CUMPROD = 4.8973451890853435e-08
"""The last alpha_cumprod of a zero terminal SNR, as in ComfyUI. At 0 sigma would be infinite."""


@dataclass(frozen=True, slots=True, eq=False)
class NoiseLevels:
    """The sigmas of every timestep, or of every `stride`-th, from the smallest to the largest."""

    sigmas: Tensor
    """(n,) float32 on the CPU."""
    log_sigmas: Tensor
    """(n,) float32 on the CPU."""
    stride: int = 1

    @classmethod
    def of(cls, sigmas: Tensor, *, stride: int = 1) -> NoiseLevels:
        """The noise levels of float64 sigmas (1000,).

        Each value is rounded to float32 once: `timestep_of` depends on it for a sigma that is
        halfway between two timesteps.
        """
        strided = sigmas[stride - 1 :: stride]
        return cls(strided.float(), strided.log().float(), stride)

    @property
    def is_flow(self) -> bool:
        """Whether x is a mean of picture and noise, and no sum."""
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
        """The sigmas of fractional timesteps, interpolated in log sigma."""
        index = ((timestep - self.first_timestep) / self.stride).clamp(min=0)
        below = index.floor().long()
        above = index.ceil().long()
        weight = index - below
        return ((1 - weight) * self.log_sigmas[below] + weight * self.log_sigmas[above]).exp()

    def timestep_of(self, sigmas: Tensor) -> Tensor:
        """(n,) the whole timestep that is nearest to each sigma in log sigma."""
        nearest = (sigmas.log()[:, None] - self.log_sigmas[None, :]).abs().argmin(dim=1)
        return nearest * self.stride + self.first_timestep

    def timestep_near(self, sigma: float) -> float:
        """`timestep_of` one sigma, remembered: the jobs of a schedule share its sigmas."""
        return _timestep_near(self, sigma)

    def fractional_timestep_of(self, sigma: float) -> float:
        """The timestep between two of the model's, interpolated in log sigma; remembered."""
        return _fractional_timestep(self, sigma)

    def noised(self, clean: Tensor, noise: Tensor, sigma: Tensor) -> Tensor:
        """A clean latent with noise of unit variance at that sigma."""
        return clean + noise * sigma

    def ended(self, x: Tensor, sigma: Tensor) -> Tensor:  # noqa: ARG002 - that of flows
        """What is passed on of a latent that was denoised down to that sigma."""
        return x

    def percent_to_sigma(self, percent: float) -> float:
        """The sigma at a `percent` (0..1) of the timesteps, counted from the largest sigma.

        It is infinite at 0, and 0 at 1, so that a range from 0 to 1 holds every sigma.
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
    """(1000,) float64: Stable Diffusion's betas are linear in their square roots."""
    betas = torch.linspace(_BETA_START**0.5, _BETA_END**0.5, _TIMESTEPS, dtype=torch.float64) ** 2
    alphas_cumprod = torch.cumprod(1 - betas, dim=0)
    return ((1 - alphas_cumprod) / alphas_cumprod).sqrt()


def zero_terminal_snr(sigmas: Tensor) -> Tensor:
    """The sigmas rescaled to a zero terminal SNR: Lin et al. 2023 (arXiv:2305.08891), algorithm 1.

    The last timestep keeps nothing of the signal.
    """
    alphas_cumprod_sqrt = 1 / (sigmas**2 + 1).sqrt()
    first, last = alphas_cumprod_sqrt[0], alphas_cumprod_sqrt[-1]
    alphas_cumprod = ((alphas_cumprod_sqrt - last) * first / (first - last)) ** 2
    alphas_cumprod[-1] = _TERMINAL_ALPHA_CUMPROD
    return ((1 - alphas_cumprod) / alphas_cumprod).sqrt()


def stable_diffusion(*, zero_terminal: bool = False, consistency: bool = False) -> NoiseLevels:
    """Stable Diffusion's noise levels; the same arguments give the same object.

    `consistency` takes every 20th timestep: latent consistency models are distilled on those (Luo
    et al. 2023, arXiv:2310.04378, section 4.3).
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
