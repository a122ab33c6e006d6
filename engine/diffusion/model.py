"""A denoising model: its weights, its family, and what its output means."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.adapters import Adapters
from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.conditioning.guidance_rules import Third
from engine.diffusion.families.family import ModelFamily
from engine.diffusion.families.flow_levels import flow_levels
from engine.diffusion.loading.memory.streaming import device_of
from engine.diffusion.patches.call_draws import CallDraws
from engine.diffusion.patches.deep_shrink import DeepShrink
from engine.diffusion.patches.hyper_tile import HyperTile
from engine.diffusion.patches.self_guidance import SelfAttention
from engine.diffusion.patches.token_merging import TokenMerging
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.diffusion.vision.attended import ImagePrompt
from engine.errors import EngineError

Prediction: TypeAlias = Literal[
    "epsilon", "v_prediction", "edm", "sample", "consistency", "image_to_image", "flow"
]
"""What the network was trained to predict, by diffusers' names.

edm: the negative of v. consistency: the noise, as a latent consistency model predicts it.
image_to_image: x0, of an input that is not scaled. flow: the noise less x0.
"""

_SIGMA_DATA = 0.5
_TIMESTEP_SCALE = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A network, the noise levels that it was trained on, and the scale of its latents.

    `dataclasses.replace` makes another model of the same weights. Models that share `unet` share
    UNet calls where `levels` and `prediction` are the same too, whatever their `adapters`.
    """

    unet: Any
    """The network: a UNet, or a transformer."""
    family: ModelFamily
    latent_scale: float
    levels: NoiseLevels = STABLE_DIFFUSION
    prediction: Prediction = "epsilon"
    sigma_data: float = 1.0
    """The standard deviation of the latents that it was trained on."""
    adapters: Adapters = ()
    """The LoRAs that its rows of a call add to the UNet."""
    rounds_timesteps: bool = True
    """Whether the network gets whole timesteps alone, as those that it was trained with."""
    guidance_rescale: float = 0.0
    """The phi of `guidance.rescaled_cfg`; 0 leaves the guidance as it is."""
    third: Third | None = None
    """What guides beside both conditionings of a sampler."""
    shrink: DeepShrink | None = None
    fewer: HyperTile | TokenMerging | None = None
    """How self-attention does less."""
    draws: CallDraws | None = None
    """What that draws in the next call."""
    perturbed_attention: float = 0.0
    """The scale of perturbed-attention guidance."""
    perturbed_unet: Any = None
    """The UNet of that guidance, once a run samples with it."""
    self_attention: SelfAttention | None = None
    """Self-attention guidance."""
    latent_shift: float = 0.0
    """What is subtracted from a latent before it is scaled."""
    soft_mask: float | None = None
    """How far the greys of a mask say in which steps a place is sampled: see `MaskSteps`."""
    image_prompts: tuple[ImagePrompt, ...] = ()
    """What its rows of a call attend to beside their texts."""

    @property
    def device(self) -> torch.device:
        return device_of(self.unet)

    @property
    def inpaints(self) -> bool:
        """Whether it is made for inpainting: see `inpainting.concat_latent`."""
        return self.family.inpaints(self.unet)

    @property
    def latent_channels(self) -> int:
        """Those of its latents."""
        return self.family.traits.latent_channels

    def with_shift(self, shift: float, count: int = 1000) -> Model:
        """The model with shifted noise levels, of which schedules see `count`.

        Raises EngineError for one that predicts no flow, and for a shift of 0.
        """
        if not self.levels.is_flow:
            raise EngineError(
                f"only flow models have shifted noise levels, and {self.family} is none"
            )
        if shift <= 0:
            raise EngineError("the shift must be above 0")
        return replace(self, levels=flow_levels(shift, count))

    def to_latent(self, samples: Tensor) -> Tensor:
        """Latents as the network has them. Those of nothing stay zeros."""
        if not self.latent_shift or not samples.any():
            return samples * self.latent_scale
        return (samples - self.latent_shift) * self.latent_scale

    def from_latent(self, x: Tensor) -> Tensor:
        """Latents as the VAE has them."""
        return x / self.latent_scale + self.latent_shift

    @property
    def dtype(self) -> torch.dtype:
        # The properties of diffusers look at all weights: a millisecond.
        weight: Tensor = next(self.unet.parameters())
        return weight.dtype

    def timestep_of(self, sigma: float) -> float:
        """The timestep that the network gets for a sigma."""
        if self.rounds_timesteps:
            return self.levels.timestep_near(sigma)
        return self.levels.fractional_timestep_of(sigma)

    def scaled_input(self, x: Tensor, sigma: Tensor) -> Tensor:
        """The network's input, of unit variance."""
        if self.prediction in {"image_to_image", "flow"}:
            return x
        return x / self._spread(sigma).sqrt()

    def denoised(self, x: Tensor, output: Tensor, sigma: Tensor) -> Tensor:
        """x0 from the network's output: Salimans and Ho 2022 (arXiv:2202.00512), appendix D."""
        match self.prediction:
            case "epsilon" | "flow":
                return x - sigma * output
            case "v_prediction":
                return self._from_v(x, output, sigma)
            case "edm":
                return self._from_v(x, -output, sigma)
            case "sample" | "image_to_image":
                return output
            case "consistency":
                return self._consistent(x, x - sigma * output, sigma)

    def _spread(self, sigma: Tensor) -> Tensor:
        return sigma**2 + self.sigma_data**2

    def _from_v(self, x: Tensor, v: Tensor, sigma: Tensor) -> Tensor:
        """Also Karras et al. 2022 (arXiv:2206.00364), table 1, by `sigma_data`."""
        spread, data = self._spread(sigma), self.sigma_data
        return x * data**2 / spread - v * sigma * data / spread.sqrt()

    def _consistent(self, x: Tensor, x0: Tensor, sigma: Tensor) -> Tensor:
        """Luo et al. 2023 (arXiv:2310.04378), section 4.1: at time 0, x0 is x itself."""
        timestep = self.levels.timestep_of(sigma.flatten().cpu()).to(sigma).view(sigma.shape)
        time = timestep * _TIMESTEP_SCALE
        spread = time**2 + _SIGMA_DATA**2
        return x * _SIGMA_DATA**2 / spread + x0 * time / spread.sqrt()

    def with_size_conditioning(
        self, conditioning: Conditioning, latent: Tensor, *, negative: bool, seed: int
    ) -> Conditioning:
        """The conditioning with the size of `latent` (batch, channels, h, w), not cropped, for
        those texts that have no size conditioning and families that take one. What is made of its
        images gets the noise of `seed`.

        Raises EngineError for a text that was encoded for another model.
        """
        for each in conditioning:
            self.family.require_own(self.unet, each)
        told = tuple(self.family.told_of_images(self.unet, each, seed) for each in conditioning)
        return self.family.with_size_conditioning(told, latent, negative=negative)
