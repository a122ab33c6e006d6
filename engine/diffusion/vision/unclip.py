"""unCLIP: images that a model is told beside the text, by their CLIP embeddings with noise.

Ramesh et al. 2022 (arXiv:2204.06125); the noise is that of Ho et al. 2021 (arXiv:2106.15282),
section 4, as Stable Diffusion 2.1 unCLIP was trained with it.
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
"""That of the sum of several images."""
_SEED_OFFSET = -10
"""To the seed of the sampler, as in ComfyUI."""


@dataclass(frozen=True, slots=True, eq=False)
class UnclipImage:
    """Images that a conditioning has beside its text."""

    embeds: Tensor
    """(images, width)."""
    strength: float
    noise_augmentation: float
    """From 0 to 1, all noise."""


def class_labels(images: Sequence[UnclipImage], seed: int, *, width: int) -> Tensor:
    """(1, width): the sum of the embeddings with noise, and how much noise that is.

    Raises EngineError for embeddings that are not half as wide.
    """
    for image in images:
        if (own := image.embeds.shape[1]) != width // 2:
            raise EngineError(
                "the image was encoded by another CLIP vision model than this checkpoint's: it is "
                f"{own} wide, and this model takes {width // 2}"
            )
    generator = torch.Generator()
    parts: list[Tensor] = []
    for image in images:
        for embed in image.embeds.split(1):
            generator.manual_seed(seed + _SEED_OFFSET)  # each gets the same noise
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
    """How much is left of an embedding at each level: Nichol and Dhariwal 2021, equation 17."""
    return (1.0 - betas_for_alpha_bar(_LEVELS).double()).cumprod(0)
