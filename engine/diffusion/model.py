"""A denoising model: its weights, its family, and the meaning of its output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.adapters import Adapters
from engine.diffusion.conditioning.condition import Conditioning, controlled
from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.conditioning.guidance import ThirdConditioning
from engine.diffusion.families.model_family import ModelFamily
from engine.diffusion.images.latents import Mask
from engine.diffusion.loading.streaming import device_of
from engine.diffusion.patches.attention_reduction import CallDraws, HyperTile, TokenMerging
from engine.diffusion.patches.deep_shrink import DeepShrink
from engine.diffusion.patches.self_guidance import SelfAttention
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels, flow_levels
from engine.diffusion.vision.attended import ImagePrompt
from engine.errors import EngineError

Prediction: TypeAlias = Literal[
    "epsilon", "v_prediction", "edm", "sample", "consistency", "image_to_image", "flow"
]
"""The quantity that the network predicts. The first two names and "sample" are from diffusers.

- edm: the negative of v
- consistency: the noise, in the parametrisation of latent consistency models
- image_to_image: x0; the input is not scaled
- flow: the noise minus x0
"""

_SIGMA_DATA = 0.5
_TIMESTEP_SCALE = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A network, its noise levels, and the scale of its latents.

    Rows of models with the same `unet`, `levels`, `prediction` and `sigma_data` can share a network
    call, even if their `adapters` differ.
    """

    unet: Any
    """The network: a UNet or a transformer."""
    family: ModelFamily
    latent_scale: float
    levels: NoiseLevels = STABLE_DIFFUSION
    prediction: Prediction = "epsilon"
    sigma_data: float = 1.0
    """The standard deviation of the latents on which the network was trained."""
    adapters: Adapters = ()
    """The LoRAs that change the network only for the rows of this model."""
    rounds_timesteps: bool = True
    """Whether timesteps are rounded to the integers with which the network was trained."""
    guidance_rescale: float = 0.0
    """The `phi` of `rescaled_cfg`. 0: the guidance is not rescaled."""
    third_conditioning: ThirdConditioning | None = None
    """A third conditioning, after the positive and the negative conditioning of a sampler."""
    shrink: DeepShrink | None = None
    attention_reduction: HyperTile | TokenMerging | None = None
    """The method that reduces the work of self-attention."""
    draws: CallDraws | None = None
    """The random numbers that `attention_reduction` uses in the next call."""
    perturbed_attention: float = 0.0
    perturbed_unet: Any = None
    """The UNet for perturbed-attention guidance. `trajectory` sets this field."""
    self_attention: SelfAttention | None = None
    latent_shift: float = 0.0
    """The value that is subtracted from a latent of the VAE before scaling."""
    soft_mask: float | None = None
    """The `strength` of `TimedMask`, or None if the mask is the same in all steps."""
    image_prompts: tuple[ImagePrompt, ...] = ()
    controls: tuple[Control, ...] = ()
    """The ControlNets that apply to every conditioning."""

    @property
    def device(self) -> torch.device:
        return device_of(self.unet)

    @property
    def latent_channels(self) -> int:
        return self.family.traits.latent_channels

    def with_shift(self, shift: float, count: int = 1000) -> Model:
        """Return the model with `count` shifted noise levels.

        Raises EngineError if the model does not predict a flow, or if the shift is not above 0.
        """
        if not self.levels.is_flow:
            raise EngineError(
                f"only flow models have shifted noise levels, but {self.family} is not a flow model"
            )
        if shift <= 0:
            raise EngineError("the shift must be above 0")
        return replace(self, levels=flow_levels(shift, count))

    def to_latent(self, samples: Tensor) -> Tensor:
        """Scale latents of the VAE for the network. Latents of zeros are not shifted."""
        if not self.latent_shift or not samples.any():
            return samples * self.latent_scale
        return self.scaled_latent(samples)

    def scaled_latent(self, samples: Tensor) -> Tensor:
        """Scale latents of the VAE for the network, also latents of zeros."""
        return (samples - self.latent_shift) * self.latent_scale

    def from_latent(self, x: Tensor) -> Tensor:
        """Scale latents of the network for the VAE."""
        return x / self.latent_scale + self.latent_shift

    @property
    def dtype(self) -> torch.dtype:
        # The property `dtype` of diffusers iterates over all weights and takes a millisecond.
        weight: Tensor = next(self.unet.parameters())
        return weight.dtype

    def timestep_of(self, sigma: float) -> float:
        if self.rounds_timesteps:
            return self.levels.timestep_near(sigma)
        return self.levels.fractional_timestep_of(sigma)

    def scaled_input(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return `x`, scaled to unit variance unless the prediction needs unscaled input."""
        if self.prediction in {"image_to_image", "flow"}:
            return x
        return x / self._spread(sigma).sqrt()

    def denoised(self, x: Tensor, output: Tensor, sigma: Tensor) -> Tensor:
        """Return x0 from the output: Salimans and Ho 2022 (arXiv:2202.00512), appendix D."""
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
        """Return x0 from v. See also Karras et al. 2022 (arXiv:2206.00364), table 1."""
        spread, data = self._spread(sigma), self.sigma_data
        return x * data**2 / spread - v * sigma * data / spread.sqrt()

    def _consistent(self, x: Tensor, x0: Tensor, sigma: Tensor) -> Tensor:
        """Return x0 of a consistency model: Luo et al. 2023 (arXiv:2310.04378), section 4.1."""
        timestep = self.levels.timestep_of(sigma.flatten()).to(sigma).view(sigma.shape)
        time = timestep * _TIMESTEP_SCALE
        spread = time**2 + _SIGMA_DATA**2
        return x * _SIGMA_DATA**2 / spread + x0 * time / spread.sqrt()

    def with_size_conditioning(
        self,
        conditioning: Conditioning,
        latent: Tensor,
        *,
        negative: bool,
        seed: int,
        mask: Mask | None = None,
    ) -> Conditioning:
        """Return `conditioning` with the inputs that depend on the latent, its mask and the seed.

        If the family has size conditioning, texts without it get the size of `latent` and no crop.
        Inputs that are computed from images get noise of `seed`. Raises EngineError for a text that
        was encoded for another model.
        """
        for control in self.controls:
            conditioning = controlled(conditioning, control)
        for each in conditioning:
            self.family.require_own(self.unet, each)
        own = (self.family.with_images(self.unet, each, seed) for each in conditioning)
        pictured = tuple(
            self.family.with_pictures(
                self.unet, each, clean=latent, mask=mask, scaled=self.scaled_latent
            )
            for each in own
        )
        return self.family.with_size_conditioning(pictured, latent, negative=negative)
