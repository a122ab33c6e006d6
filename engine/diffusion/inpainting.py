"""Denoising a part of a latent while the rest stays as it is."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.samplers.runge_kutta import Sampling

_GREY = (0.8223, -0.6876, 0.6364, 0.1380)
"""What the VAE of Stable Diffusion 1 makes of a grey image, scaled, in each channel."""


def fitted_mask(mask: Tensor, like: Tensor) -> Tensor:
    """(batch, 1, height, width) of a mask of any size, for the latent `like` (batch, 4, h, w).

    Masks are repeated where there are fewer than latents.
    """
    planes = mask.reshape(-1, 1, *mask.shape[-2:]).to(like)
    if planes.shape[2:] != like.shape[2:]:
        planes = functional.interpolate(planes, size=like.shape[2:], mode="bilinear")
    repeats = -(-len(like) // len(planes))
    return planes.repeat(repeats, 1, 1, 1)[: len(like)]


def shown_beside(mask: Tensor | None, clean: Tensor) -> Tensor:
    """(batch, 5, height, width): what checkpoints made for inpainting see beside the noisy latent.

    1 where to paint, and the latent that surrounds it: Rombach et al. 2022 (arXiv:2112.10752),
    section 4.5. Without a mask there is nothing to keep, and what surrounds it is grey.
    """
    if mask is None:
        grey = torch.tensor(_GREY, device=clean.device, dtype=clean.dtype)[:, None, None]
        return torch.cat([torch.ones_like(clean[:, :1]), grey.expand_as(clean)], dim=1)
    return torch.cat([fitted_mask(mask, clean).round(), clean], dim=1)


def inpainting(sampling: Sampling, mask: Tensor, clean: Tensor, noise: Tensor) -> Sampling:
    """`sampling` where `mask` is 1; where it is 0 it sees `clean` with its noise, and keeps it.

    Replacement of the known region: Lugmayr et al. 2022 (arXiv:2201.09865), equation 8, once a
    step, with the same noise throughout.
    """
    kept = 1 - mask
    try:
        x, sigma = next(sampling)
        while True:
            x0 = yield x * mask + (clean + noise * sigma) * kept, sigma
            x, sigma = sampling.send(x0 * mask + clean * kept)
    except StopIteration as stop:
        found: Tensor = stop.value
        return found
