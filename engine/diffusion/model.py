"""A denoising model: its weights, and what its answer means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.noise_levels import STABLE_DIFFUSION, NoiseLevels

_INPAINTING_CHANNELS = 9

Prediction: TypeAlias = Literal["epsilon", "v_prediction", "sample"]
"""What the network was trained to give, by diffusers' names."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A UNet, the noise levels it knows, and what its latents are multiplied with.

    Another one of the same weights is made by `dataclasses.replace`. Models that share `unet` share
    its calls where `levels` and `prediction` are the same too.
    """

    unet: Any
    latent_scale: float
    levels: NoiseLevels = STABLE_DIFFUSION
    prediction: Prediction = "epsilon"

    @property
    def device(self) -> torch.device:
        return self._weight.device

    @property
    def inpaints(self) -> bool:
        """Whether it is shown a mask and the latent outside of it beside the noisy latent."""
        return bool(self.unet.config.in_channels == _INPAINTING_CHANNELS)

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    @property
    def _weight(self) -> Tensor:
        """The first. What diffusers answers for a whole model takes it a millisecond."""
        weight: Tensor = next(self.unet.parameters())
        return weight

    def scaled(self, x: Tensor, sigma: Tensor) -> Tensor:
        """What the network is shown, of unit variance."""
        return x / (sigma**2 + 1).sqrt()

    def denoised(self, x: Tensor, output: Tensor, sigma: Tensor) -> Tensor:
        """x0 from the network's answer: Salimans and Ho 2022 (arXiv:2202.00512), appendix D."""
        match self.prediction:
            case "epsilon":
                return x - sigma * output
            case "v_prediction":
                return x / (sigma**2 + 1) - output * sigma / (sigma**2 + 1).sqrt()
            case "sample":
                return output
