"""unCLIP: images that condition a model in addition to the text (arXiv:2204.06125).

The input is the CLIP embedding of an image with added noise. The noise is described in section 4 of
Ho et al. 2021 (arXiv:2106.15282). Stable Diffusion 2.1 unCLIP was trained with this noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from diffusers.models.embeddings import get_timestep_embedding
from diffusers.schedulers.scheduling_ddpm import betas_for_alpha_bar
from torch import Tensor

from engine.errors import EngineError

_LEVELS = 1000
_MERGED_AUGMENTATION = 0.05
"""The level of the noise that is added to the sum of several images."""
_SEED_OFFSET = -10
"""The number that is added to the seed of the sampler, as in ComfyUI."""


@dataclass(frozen=True, slots=True, eq=False)
class UnclipImage:
    """Images that a conditioning has in addition to its text."""

    embeds: Tensor
    """(images, width)."""
    strength: float
    noise_augmentation: float
    """The amount of noise, from 0 to 1. At 1, nothing of the image is left."""


def class_labels(images: Sequence[UnclipImage], seed: int, *, width: int) -> Tensor:
    """Return the class labels, (1, width).

    The first half is the sum of the embeddings with noise. The second half encodes the noise level.
    Raises EngineError if the width of the embeddings is not half of `width`.
    """
    for image in images:
        if (own := image.embeds.shape[1]) != width // 2:
            raise EngineError(
                "the image was encoded by another CLIP vision model than that of this checkpoint: "
                f"it has the width {own}, but this model needs {width // 2}"
            )
    generator = torch.Generator()
    parts: list[Tensor] = []
    for image in images:
        for embed in image.embeds.split(1):
            # The seed is set for each image, so that every image gets the same noise.
            generator.manual_seed(seed + _SEED_OFFSET)
            parts.append(_noised(embed, image.noise_augmentation, generator) * image.strength)
    if len(parts) == 1:
        return parts[0]
    merged, _ = torch.stack(parts).sum(0).chunk(2, dim=1)
    return _noised(merged, _MERGED_AUGMENTATION, generator)


def _noised(embed: Tensor, augmentation: float, generator: torch.Generator) -> Tensor:
    level = round((_LEVELS - 1) * augmentation)
    kept = _kept()[level]
    noise = torch.randn(embed.shape, generator=generator)
    noised = kept.sqrt().float() * embed + (1.0 - kept).sqrt().float() * noise
    time = get_timestep_embedding(
        torch.tensor([level]), embed.shape[1], flip_sin_to_cos=True, downscale_freq_shift=0
    )
    return torch.cat([noised, time], dim=1)


@cache
def _kept() -> Tensor:
    """Return the share of an embedding at each noise level (arXiv:2102.09672, equation 17)."""
    return (1.0 - betas_for_alpha_bar(_LEVELS).double()).cumprod(0)
