"""A denoising model: its weights, its size conditioning, and what its output means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from engine.diffusion.adapters import Adapters
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.conditioning.guidance_rules import Third
from engine.diffusion.families.flow_levels import flow_levels
from engine.diffusion.families.transformer import TransformerFamily
from engine.diffusion.images.latents import CHANNELS
from engine.diffusion.patches.deep_shrink import DeepShrink
from engine.diffusion.patches.self_guidance import SelfAttention
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.diffusion.vision.attended import ImagePrompt
from engine.diffusion.vision.unclip import class_labels
from engine.errors import EngineError
from engine.graph.families import Family

Prediction: TypeAlias = Literal[
    "epsilon", "v_prediction", "edm", "sample", "consistency", "image_to_image", "flow"
]
"""What the network was trained to predict, by diffusers' names.

edm: the negative of v. consistency: the noise, as a latent consistency model predicts it.
image_to_image: x0, of an input that is not scaled. flow: the noise less x0.
"""

_INPAINTING_CHANNELS = 9
_SIGMA_DATA = 0.5
_TIMESTEP_SCALE = 10.0

_PIXELS_PER_LATENT = 8
_POSITIVE_SCORE, _NEGATIVE_SCORE = 6.0, 2.5
"""Aesthetic scores for the refiner of SDXL, as diffusers and ComfyUI set them."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A network, the noise levels that it was trained on, and the scale of its latents.

    `dataclasses.replace` makes another model of the same weights. Models that share `unet` share
    UNet calls where `levels` and `prediction` are the same too, whatever their `adapters`.
    """

    unet: Any
    """The network: a UNet, or the transformer of `transformer`."""
    latent_scale: float
    levels: NoiseLevels = STABLE_DIFFUSION
    prediction: Prediction = "epsilon"
    sigma_data: float = 1.0
    """The standard deviation of the latents that it was trained on."""
    family: Family = Family.SD1
    adapters: Adapters = ()
    """The LoRAs that its rows of a call add to the UNet."""
    rounds_timesteps: bool = True
    """Whether the network gets whole timesteps alone, as those that it was trained with."""
    guidance_rescale: float = 0.0
    """The phi of `guidance.rescaled_cfg`; 0 leaves the guidance as it is."""
    third: Third | None = None
    """What guides beside both conditionings of a sampler."""
    shrink: DeepShrink | None = None
    perturbed_attention: float = 0.0
    """The scale of perturbed-attention guidance."""
    perturbed_unet: Any = None
    """The UNet of that guidance, once a run samples with it."""
    self_attention: SelfAttention | None = None
    """Self-attention guidance."""
    latent_shift: float = 0.0
    """What is subtracted from a latent before it is scaled."""
    transformer: TransformerFamily | None = None
    """The family of a network that is no UNet."""
    soft_mask: float | None = None
    """How far the greys of a mask say in which steps a place is sampled: see `MaskSteps`."""
    image_prompts: tuple[ImagePrompt, ...] = ()
    """What its rows of a call attend to beside their texts."""

    @property
    def device(self) -> torch.device:
        return self._weight.device

    @property
    def inpaints(self) -> bool:
        """Whether it is made for inpainting: see `inpainting.concat_latent`."""
        return self.transformer is None and bool(
            self.unet.config.in_channels == _INPAINTING_CHANNELS
        )

    @property
    def latent_channels(self) -> int:
        """Those of its latents."""
        return CHANNELS if self.transformer is None else self.transformer.latent.channels

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
        return self._weight.dtype

    @property
    def _weight(self) -> Tensor:
        """The first weight. The properties of diffusers look at all weights: a millisecond."""
        weight: Tensor = next(self.unet.parameters())
        return weight

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
        """The conditioning with the size of `latent` (batch, 4, h, w), not cropped, as the size
        conditioning of those texts that have none. Other models than SDXL's take none. What is made
        of its images gets the noise of `seed`.

        Raises EngineError for a text that was encoded for another model.
        """
        for each in conditioning:
            self._require_own(each)
        conditioning = tuple(self._labelled(each, seed) for each in conditioning)
        if not self._has_size_conditioning:
            return conditioning
        height, width = (float(side * _PIXELS_PER_LATENT) for side in latent.shape[2:])
        rest: tuple[float, ...] = (height, width)
        if self.family is Family.SDXL_REFINER:
            rest = (_NEGATIVE_SCORE if negative else _POSITIVE_SCORE,)
        whole = (height, width, 0.0, 0.0, *rest)
        return tuple(
            replace(each, size_conditioning=self._size_conditioning(each, whole))
            for each in conditioning
        )

    def _size_conditioning(
        self, condition: Condition, whole: tuple[float, ...]
    ) -> tuple[float, ...]:
        """That of the text, or `whole`. A text for the base model lacks the score that the refiner
        takes, and a text for the refiner lacks the target size that the base model takes.
        """
        given = condition.size_conditioning
        if given is None or len(given) == len(whole):
            return given or whole
        return (*given[:4], *(whole[4:] if self.family is Family.SDXL_REFINER else given[:2]))

    def _labelled(self, condition: Condition, seed: int) -> Condition:
        """With what a model of unCLIP is told of its images; others ignore them. To SDXL they are
        told in the place of the whole text.
        """
        own = self._label_width
        pooled = condition.pooled if self.family is Family.SDXL else None
        if not condition.unclip or (own is None and pooled is None):
            return condition
        labels = class_labels(condition.unclip, seed)
        width, takes = labels.shape[1], own or 2 * (0 if pooled is None else pooled.shape[1])
        if width != takes:
            raise EngineError(
                f"the image was encoded by another CLIP vision model than this checkpoint's: it is "
                f"{width // 2} wide, and this model takes {takes // 2}"
            )
        if pooled is not None:
            return replace(condition, pooled=labels[:, : width // 2].to(pooled))
        return replace(condition, class_labels=labels)

    @property
    def _label_width(self) -> int | None:
        """The width of what a UNet of unCLIP is told of images; None for another network."""
        if self.transformer is not None or self.unet.config.class_embed_type != "projection":
            return None
        width: int = self.unet.config.projection_class_embeddings_input_dim
        return width

    @property
    def _has_size_conditioning(self) -> bool:
        return self.family in {Family.SDXL, Family.SDXL_REFINER}

    def _require_own(self, condition: Condition) -> None:
        if self.transformer is not None:
            self.transformer.require_own(self.unet, condition)
            return
        width, own = condition.tokens.shape[-1], self.unet.config.cross_attention_dim
        if width != own or (self._has_size_conditioning and condition.pooled is None):
            raise EngineError(
                f"the text was encoded for another model: it is {width} wide, and this model "
                f"({self.family}) takes {own}; encode it with the CLIP of the same checkpoint"
            )

    def unet_inputs(self, conditions: Sequence[Condition], sizes: Sequence[int]) -> dict[str, Any]:
        """What the UNet takes besides latents, times and tokens; `sizes`: rows per condition.

        For SDXL see Podell et al. 2023 (arXiv:2307.01952), section 2.2.
        """
        if width := self._label_width:
            none = torch.zeros(1, width)
            labels = [none if c.class_labels is None else c.class_labels for c in conditions]
            rows_of = zip(labels, sizes, strict=True)
            joined = torch.cat([each.expand(rows, -1) for each, rows in rows_of])
            return {"class_labels": joined.to(self.device, self.dtype)}
        if not self._has_size_conditioning:
            return {}
        pooled, time_ids = [], []
        for condition, rows in zip(conditions, sizes, strict=True):
            assert condition.pooled is not None
            pooled.append(condition.pooled.expand(rows, -1))
            time_ids += [condition.size_conditioning] * rows
        added = {
            "text_embeds": torch.cat(pooled).to(self.device, self.dtype),
            "time_ids": torch.tensor(time_ids, device=self.device),
        }
        return {"added_cond_kwargs": added}
