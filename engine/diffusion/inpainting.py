"""Inpainting: a part of a latent is denoised, the rest stays as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling

_GREY = (0.8223, -0.6876, 0.6364, 0.1380)
"""Each channel of the scaled latent that the VAE of Stable Diffusion 1 makes of a grey image."""


def fitted_mask(mask: Tensor, like: Tensor) -> Tensor:
    """The mask as (batch, 1, h, w), scaled to the size of the latent `like` (batch, 4, h, w).

    Masks are repeated where there are fewer masks than latents.
    """
    planes = mask.reshape(-1, 1, *mask.shape[-2:]).to(like)
    if planes.shape[2:] != like.shape[2:]:
        planes = functional.interpolate(planes, size=like.shape[2:], mode="bilinear")
    repeats = -(-len(like) // len(planes))
    return planes.repeat(repeats, 1, 1, 1)[: len(like)]


def concat_latent(mask: Tensor | None, clean: Tensor) -> Tensor:
    """(batch, 5, h, w): the channels that an inpainting model gets after those of the noisy latent.

    The mask is 1 where the model paints; the four channels of the clean latent follow. Rombach et
    al. 2022 (arXiv:2112.10752), section 4.5. Without a mask the model paints everywhere, on grey.
    """
    if mask is None:
        grey = torch.tensor(_GREY, device=clean.device, dtype=clean.dtype)[:, None, None]
        return torch.cat([torch.ones_like(clean[:, :1]), grey.expand_as(clean)], dim=1)
    return torch.cat([fitted_mask(mask, clean).round(), clean], dim=1)


@dataclass(frozen=True, slots=True)
class MaskSteps:
    """Greys of a mask as times: the lighter a place, the sooner it is sampled.

    Levin and Fried 2023 (arXiv:2306.00950), section 3.2. `strength` is the share of that in the
    mask; the rest is the mask itself.
    """

    first: float
    """The timestep of the first sigma."""
    last: float
    levels: NoiseLevels
    strength: float

    @classmethod
    def of(cls, sigmas: Tensor, levels: NoiseLevels, strength: float | None) -> MaskSteps | None:
        """The steps from the first of the sigmas to the last of those that the model knows.

        None without a `strength`: the mask is the same in all steps.
        """
        if strength is None:
            return None
        ends = torch.stack([sigmas[0], torch.maximum(sigmas[-1], levels.sigma_min)])
        first, last = levels.timestep_of(ends).tolist()
        return cls(first, last, levels, strength)

    def at(self, mask: Tensor, sigma: Tensor) -> Tensor:
        """The mask that holds at a sigma."""
        left = self.levels.timestep_near(float(sigma)) - self.last
        whole = self.first - self.last
        sampled = (mask >= (left / whole if whole else float("inf"))).to(mask)
        return sampled * self.strength + mask * (1 - self.strength)


@dataclass(frozen=True, slots=True, eq=False)
class KeptNoise:
    """The noise of what a mask keeps."""

    noise: Tensor
    is_renewed: bool = True
    """Without that the model gets what the sampler has there, as in the WebUI."""


def inpainting(
    sampling: Sampling,
    mask: Tensor,
    clean: Tensor,
    kept_noise: KeptNoise,
    *,
    levels: NoiseLevels = STABLE_DIFFUSION,
    steps: MaskSteps | None = None,
) -> Sampling:
    """`sampling` that changes the latent where `mask` is 1, and keeps `clean` where it is 0.

    There the model gets `clean` with `noise` of the current sigma: the replacement of Lugmayr et
    al. 2022 (arXiv:2201.09865), equation 8, once in each call, with the same noise each time.
    """
    whole = mask
    try:
        x, sigma = next(sampling)
        while True:
            mask = steps.at(whole, sigma) if steps else whole
            kept = 1 - mask
            noised = levels.noised(clean, kept_noise.noise, sigma)
            x0 = yield x * mask + noised * kept if kept_noise.is_renewed else x, sigma
            x, sigma = sampling.send(x0 * mask + clean * kept)
    except StopIteration as stop:
        end: Tensor = stop.value
        return end if kept_noise.is_renewed else end * whole + clean * (1 - whole)
