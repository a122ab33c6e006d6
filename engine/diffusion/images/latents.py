"""Latents and images as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIXELS_PER_LATENT = 8
CHANNELS = 4

Images: TypeAlias = Tensor
"""(batch, height, width, 3) float32 of 0..1."""
Mask: TypeAlias = Tensor
"""(batch, height, width) float32 of 0..1."""


@dataclass(frozen=True, slots=True, eq=False)
class Latent:
    """`dataclasses.replace` makes another of it."""

    samples: Tensor
    """(batch, 4, height/8, width/8) float32, in the scale that the VAE decodes."""
    noise_mask: Tensor | None = None
    """(batch or 1, height, width) of 0..1 in any size: 1 where the latent is to be made anew."""
    batch_index: tuple[int, ...] | None = None
    """Which draw of noise each of the batch takes; None: in order."""


def empty_latent(width: int, height: int, batch_size: int) -> Latent:
    """Zeros for images of `width` x `height` pixels."""
    side = (height // PIXELS_PER_LATENT, width // PIXELS_PER_LATENT)
    return Latent(torch.zeros(batch_size, CHANNELS, *side))


def noise_like(samples: Tensor, seed: int) -> Tensor:
    """Normal noise of that shape, the same on every device; one draw serves the whole batch."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples.shape, generator=generator, dtype=torch.float32)


def to_pixels(images: Images) -> list[NDArray[np.uint8]]:
    """Each image as (height, width, 3) of 0..255. Cut, not rounded: ComfyUI's PNGs are so."""
    levels = (images * 255.0).clamp(0, 255).to(torch.uint8).cpu()
    return [np.ascontiguousarray(image.numpy()) for image in levels]
