"""Inpainting: a part of a latent is denoised, and the rest is kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling

_GREY = (0.8223, -0.6876, 0.6364, 0.1380)
"""The channels of a grey image's latent in Stable Diffusion 1, scaled for the network."""


def fitted_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return the mask as (batch, 1, h, w), resized to the latent `like` (batch, channels, h, w).

    If there are fewer masks than latents, the masks are repeated.
    """
    planes = mask.reshape(-1, 1, *mask.shape[-2:]).to(like)
    if planes.shape[2:] != like.shape[2:]:
        planes = functional.interpolate(planes, size=like.shape[2:], mode="bilinear")
    repeats = -(-len(like) // len(planes))
    return planes.repeat(repeats, 1, 1, 1)[: len(like)]


def concat_latent(mask: Tensor | None, clean: Tensor) -> Tensor:
    """Return the additional input channels of an inpainting model, (batch, 5, h, w).

    The channels are in section 4.5 of Rombach et al. 2022 (arXiv:2112.10752). The first channel is
    the mask, which is 1 where the model paints. The other four are the clean latent. Without a
    mask, the model paints everywhere, and the clean latent is that of a grey image.
    """
    if mask is None:
        grey = torch.tensor(_GREY, device=clean.device, dtype=clean.dtype)[:, None, None]
        return torch.cat([torch.ones_like(clean[:, :1]), grey.expand_as(clean)], dim=1)
    return torch.cat([fitted_mask(mask, clean).round(), clean], dim=1)


@dataclass(frozen=True, slots=True)
class TimedMask:
    """Masks whose grey levels are times: sampling begins earlier at lighter positions.

    The method is in section 3.2 of Levin and Fried 2023 (arXiv:2306.00950). The mask of a step is
    strength x (binary mask of that section) + (1 - strength) x (grey mask).
    """

    first: float
    last: float
    """The timestep of the last sigma, or of the model's smallest sigma if that sigma is larger."""
    levels: NoiseLevels
    strength: float

    @classmethod
    def of(cls, sigmas: Tensor, levels: NoiseLevels, strength: float | None) -> TimedMask | None:
        """Return None if `strength` is None: the mask is then the same in all steps."""
        if strength is None:
            return None
        ends = torch.stack([sigmas[0], torch.maximum(sigmas[-1], levels.sigma_min)])
        first, last = levels.timestep_of(ends).tolist()
        return cls(first, last, levels, strength)

    def at(self, mask: Tensor, sigma: Tensor) -> Tensor:
        left = self.levels.timestep_near(float(sigma)) - self.last
        whole = self.first - self.last
        sampled = (mask >= (left / whole if whole else float("inf"))).to(mask)
        return sampled * self.strength + mask * (1 - self.strength)


@dataclass(frozen=True, slots=True, eq=False)
class KeptNoise:
    """The noise of the part of a latent that is kept."""

    noise: Tensor
    is_renewed: bool = True
    """Whether each call replaces the kept part of the sampler's latent, unlike in the WebUI."""


def inpainting(
    sampling: Sampling,
    mask: Tensor,
    clean: Tensor,
    kept_noise: KeptNoise,
    *,
    levels: NoiseLevels = STABLE_DIFFUSION,
    timed_mask: TimedMask | None = None,
) -> Sampling:
    """Run `sampling`, but change the latent only where `mask` is 1. Keep `clean` where it is 0.

    In the kept part, the model gets `clean` with noise of the current sigma, as in equation 8 of
    Lugmayr et al. 2022 (arXiv:2201.09865). All calls use the same noise.
    """
    whole = mask
    try:
        x, sigma = next(sampling)
        while True:
            mask = timed_mask.at(whole, sigma) if timed_mask else whole
            kept = 1 - mask
            noised = levels.noised(clean, kept_noise.noise, sigma)
            x0 = yield x * mask + noised * kept if kept_noise.is_renewed else x, sigma
            x, sigma = sampling.send(x0 * mask + clean * kept)
    except StopIteration as stop:
        end: Tensor = stop.value
        return end if kept_noise.is_renewed else end * whole + clean * (1 - whole)
