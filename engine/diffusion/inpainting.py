"""Inpainting: a part of a latent is denoised, and the rest is kept.

Some networks get a picture and a mask in further input channels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.conditioning.condition import ConcatImage
from engine.diffusion.images.latents import Mask
from engine.diffusion.images.resampling import resampled
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.errors import EngineError

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


def fitted_image(samples: Tensor, like: Tensor) -> Tensor:
    """Return latents in the size and number of the latents `like` (batch, channels, h, w).

    Parts that do not fit the proportions of `like` are cut off, as in ComfyUI.
    """
    samples = samples.to(like)
    height, width = like.shape[2:]
    if samples.shape[2:] != like.shape[2:]:
        samples = resampled(samples, width, height, method="bilinear", crop="center")
    return spread(samples, len(like))


def spread(samples: Tensor, count: int) -> Tensor:
    """Return `count` samples of a batch at equal distances, or each sample several times."""
    own = len(samples)
    if count == 1:
        return samples[:1]
    if count < own:
        at = [round(index * (own - 1) / (count - 1)) for index in range(count)]
    else:
        at = [int((index + 0.5) * own / count) for index in range(count)]
    return samples[at]


def require_channels(image: ConcatImage | None, channels: int, title: str) -> None:
    """Raise EngineError if a picture was not encoded for the family called `title`."""
    if image is not None and (own := image.samples.shape[1]) != channels:
        raise EngineError(
            f"the picture of the conditioning was encoded for another model: its latent has {own} "
            f"channels, but {title} needs {channels}; use the VAE of the model"
        )


def inpainting_channels(
    image: ConcatImage | None,
    *,
    clean: Tensor,
    mask: Mask | None,
    scaled: Callable[[Tensor], Tensor],
) -> Tensor:
    """Return the further input channels of an inpainting UNet, (batch, 5, h, w).

    The channels are in section 4.5 of Rombach et al. 2022 (arXiv:2112.10752). The first channel is
    the mask, which is 1 where the model paints. The other four are the picture. If the conditioning
    has none, they are the latent `clean` with its `mask`. Without a mask, the model paints
    everywhere, and the picture is grey. `scaled` scales a latent of the VAE for the network.
    """
    if image is not None and image.mask is not None:
        planes = fitted_image(image.mask.reshape(-1, 1, *image.mask.shape[-2:]), clean)
    elif mask is not None:
        planes = fitted_mask(mask, clean)
    else:
        grey = torch.tensor(_GREY, device=clean.device, dtype=clean.dtype)[:, None, None]
        return torch.cat([torch.ones_like(clean[:, :1]), grey.expand_as(clean)], dim=1)
    picture = clean if image is None else scaled(fitted_image(image.samples, clean))
    return torch.cat([planes.round(), picture], dim=1)


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
