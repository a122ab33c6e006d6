"""A denoising model: its weights, what it is told beside the text, and what its answer means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.errors import EngineError
from engine.graph.families import Family

Prediction: TypeAlias = Literal[
    "epsilon", "v_prediction", "sample", "consistency", "image_to_image"
]
"""What the network was trained to predict, by diffusers' names.

consistency: the noise, as a latent consistency model predicts it. image_to_image: x0, of an input
that is not scaled.
"""

_INPAINTING_CHANNELS = 9
_SIGMA_DATA = 0.5
_TIMESTEP_SCALE = 10.0

_PIXELS_PER_LATENT = 8
_ASPIRED, _AVOIDED = 6.0, 2.5
"""Aesthetic scores that the refiner of SDXL is told for the two halves of guidance."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A UNet, the noise levels that it was trained on, and the scale of its latents.

    `dataclasses.replace` makes another model of the same weights. Models that share `unet` share
    UNet calls where `levels` and `prediction` are the same too.
    """

    unet: Any
    latent_scale: float
    levels: NoiseLevels = STABLE_DIFFUSION
    prediction: Prediction = "epsilon"
    family: Family = Family.SD1
    guidance_rescale: float = 0.0
    """The phi of `guidance.rescaled_cfg`; 0 leaves the guidance as it is."""

    @property
    def device(self) -> torch.device:
        return self._weight.device

    @property
    def inpaints(self) -> bool:
        """Whether it is made for inpainting: see `inpainting.concat_latent`."""
        return bool(self.unet.config.in_channels == _INPAINTING_CHANNELS)

    @property
    def dtype(self) -> torch.dtype:
        return self._weight.dtype

    @property
    def _weight(self) -> Tensor:
        """The first weight. The properties of diffusers look at all weights: a millisecond."""
        weight: Tensor = next(self.unet.parameters())
        return weight

    def scaled_input(self, x: Tensor, sigma: Tensor) -> Tensor:
        """The network's input, of unit variance."""
        if self.prediction == "image_to_image":
            return x
        return x / (sigma**2 + 1).sqrt()

    def denoised(self, x: Tensor, output: Tensor, sigma: Tensor) -> Tensor:
        """x0 from the network's output: Salimans and Ho 2022 (arXiv:2202.00512), appendix D."""
        match self.prediction:
            case "epsilon":
                return x - sigma * output
            case "v_prediction":
                return x / (sigma**2 + 1) - output * sigma / (sigma**2 + 1).sqrt()
            case "sample" | "image_to_image":
                return output
            case "consistency":
                return self._consistent(x, x - sigma * output, sigma)

    def _consistent(self, x: Tensor, x0: Tensor, sigma: Tensor) -> Tensor:
        """Luo et al. 2023 (arXiv:2310.04378), section 4.1: at time 0, x0 is x itself."""
        timestep = self.levels.timestep_of(sigma.flatten().cpu()).to(sigma).view(sigma.shape)
        time = timestep * _TIMESTEP_SCALE
        spread = time**2 + _SIGMA_DATA**2
        return x * _SIGMA_DATA**2 / spread + x0 * time / spread.sqrt()

    def sized(self, conditioning: Conditioning, latent: Tensor, *, negative: bool) -> Conditioning:
        """With the sizes that the model is told where the text came with none: those of `latent`
        (batch, 4, h, w), not cropped. Raises EngineError for a text that is not the model's.
        """
        for each in conditioning:
            self._require_own(each)
        if not self._takes_sizes:
            return conditioning
        height, width = (float(side * _PIXELS_PER_LATENT) for side in latent.shape[2:])
        rest: tuple[float, ...] = (height, width)
        if self.family is Family.SDXL_REFINER:
            rest = (_AVOIDED if negative else _ASPIRED,)
        whole = (height, width, 0.0, 0.0, *rest)
        return tuple(replace(each, sizes=self._sizes(each, whole)) for each in conditioning)

    def _sizes(self, condition: Condition, whole: tuple[float, ...]) -> tuple[float, ...]:
        """A text for the base model tells the refiner no score, one for the refiner no target."""
        given = condition.sizes
        if given is None or len(given) == len(whole):
            return given or whole
        return (*given[:4], *(whole[4:] if self.family is Family.SDXL_REFINER else given[:2]))

    @property
    def _takes_sizes(self) -> bool:
        return self.family in {Family.SDXL, Family.SDXL_REFINER}

    def _require_own(self, condition: Condition) -> None:
        width, own = condition.tokens.shape[-1], self.unet.config.cross_attention_dim
        if width != own or (self._takes_sizes and condition.pooled is None):
            raise EngineError(
                f"the text was encoded for another model: it is {width} wide, and this model "
                f"({self.family}) takes {own}; encode it with the CLIP of the same checkpoint"
            )

    def unet_inputs(self, conditions: Sequence[Condition], sizes: Sequence[int]) -> dict[str, Any]:
        """What a UNet call takes beside latents, times and tokens; `sizes` rows of each condition.

        Podell et al. 2023 (arXiv:2307.01952), section 2.2.
        """
        if not self._takes_sizes:
            return {}
        texts, told = [], []
        for condition, rows in zip(conditions, sizes, strict=True):
            assert condition.pooled is not None
            texts.append(condition.pooled.expand(rows, -1))
            told += [condition.sizes] * rows
        added = {
            "text_embeds": torch.cat(texts).to(self.device, self.dtype),
            "time_ids": torch.tensor(told, device=self.device),
        }
        return {"added_cond_kwargs": added}
