"""The types of latents, images and masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

PIXELS_PER_LATENT = 8
CHANNELS = 4
FLUX_CHANNELS = 16
"""The latents of Stable Diffusion have 4 channels. Those of Flux and Z-Image have 16."""

COLOURS = 3
"""The number of channels of an image without an opacity."""

Images: TypeAlias = Tensor
"""(batch, height, width, 3) float32 of 0..1, or with a fourth channel for the opacity."""
Mask: TypeAlias = Tensor
"""(batch, height, width) float32 of 0..1."""


@dataclass(frozen=True, slots=True, eq=False)
class Latent:
    """Latents with the mask and the noise draws for sampling."""

    samples: Tensor
    """(batch, 4 or 16, height/8, width/8) float32, in the scale of the VAE."""
    noise_mask: Tensor | None = None
    """(batch or 1, height, width) of 0..1, in any size. It is 1 where the latent is sampled."""
    batch_index: tuple[int, ...] | None = None
    """The index of the noise draw for each latent of the batch. None: 0, 1, 2, …"""


def empty_latent(width: int, height: int, batch_size: int, channels: int = CHANNELS) -> Latent:
    """Return latents of zeros for images of `width` x `height` pixels."""
    side = (height // PIXELS_PER_LATENT, width // PIXELS_PER_LATENT)
    return Latent(torch.zeros(batch_size, channels, *side))


def repeated_to(batch: Tensor, count: int) -> Tensor:
    """Return the first `count` items of a batch. A smaller batch is repeated from its start."""
    if len(batch) >= count:
        return batch[:count]
    return batch[torch.arange(count, device=batch.device) % len(batch)]


def with_channels(images: Images, count: int) -> Images:
    """Return the images with 3 or 4 channels. An opacity that is added is 1."""
    if images.shape[-1] < count:
        return functional.pad(images, (0, 1), value=1.0)
    return images[..., :count]


def to_pixels(images: Images) -> list[NDArray[np.uint8]]:
    """Return each image as (height, width, 3 or 4) of 0..255, truncated as in ComfyUI."""
    levels = (images * 255.0).clamp(0, 255).to(torch.uint8).cpu()
    return [np.ascontiguousarray(image.numpy()) for image in levels]
