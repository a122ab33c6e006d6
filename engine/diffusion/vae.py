"""Latents to images."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from engine.batcher import Request
from engine.diffusion.latents import Images
from engine.diffusion.memory import memory_checked

_LATENT_PIXELS_PER_ROW = 128


@dataclass(frozen=True, slots=True, eq=False)
class Vae:
    """An autoencoder, in float32."""

    autoencoder: Any


@dataclass(slots=True, eq=False)
class Decode(Request):
    """One latent (1, 4, h, w) to be decoded.

    Only small ones gain from sharing a call; a large one counts for all its rows, so that other
    jobs' steps come in between the images of a batch.
    """

    vae: Vae
    samples: Tensor

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        height, width = self.samples.shape[2:]
        return max(1, height * width // _LATENT_PIXELS_PER_ROW)

    @property
    def key(self) -> Hashable:
        return "decode", id(self.vae.autoencoder), self.samples.shape

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Images]:
        """(1, height, width, 3) of 0..1 for each."""
        autoencoder = requests[0].vae.autoencoder
        with memory_checked():
            samples = torch.cat([request.samples.to(autoencoder.device) for request in requests])
            decoded: Tensor = autoencoder.decode(samples, return_dict=False)[0]
            images = ((decoded + 1.0) / 2.0).clamp(0.0, 1.0)
            return list(images.movedim(1, -1).split(1))
