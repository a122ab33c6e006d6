"""Families whose network is a UNet that attends to texts encoded by CLIP.

These families are Stable Diffusion 1, Stable Diffusion 2, Stable Diffusion XL and its refiner
(Podell et al. 2023, arXiv:2307.01952).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from engine.diffusion.adapters import updated
from engine.diffusion.conditioning.condition import Condition, Conditioning
from engine.diffusion.conditioning.control_net import require_unet_control, residuals
from engine.diffusion.conditioning.gligen import grounded
from engine.diffusion.families.model_family import Call, ModelFamily
from engine.diffusion.host_copies import copied
from engine.diffusion.images.latents import PIXELS_PER_LATENT, Mask
from engine.diffusion.inpainting import fitted_image, inpainting_channels, require_channels
from engine.diffusion.loading.layers import CrossAttentionCache, join_texts
from engine.diffusion.loading.lora_layers import LayersByName, unet_layers
from engine.diffusion.loading.streaming import device_of
from engine.diffusion.loading.weights import Weights
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.text.text_encoders import CLIP_G, CLIP_H, CLIP_L, SDXL_CLIP_L, TextEncoderSpec
from engine.diffusion.vision.row_prompts import prompted
from engine.diffusion.vision.unclip import class_labels
from engine.errors import EngineError
from engine.families import table
from engine.families.family import UNET

_INPAINTING_CHANNELS = 9
_INSTRUCTION_CHANNELS = 8
_SHARED_TOKENS = 4 * 77
"""Prompts with more tokens share calls only with prompts of equal length, because a long prompt
slows down the shorter prompts of its call.
"""
_HAS_SIZES = "text_time"
"""The `addition_embed_type` of UNets with size conditioning."""


class UNetFamily(ModelFamily):
    """A family whose network is a UNet. A subclass defines the text encoders and the sizes."""

    predicts_flow = False
    repeats_texts = True
    encoders: ClassVar[tuple[tuple[str, TextEncoderSpec], ...]]
    """The configuration folder and the specification of each text encoder."""
    sizes: ClassVar[str]
    """The folder of `configs/` with the sizes of the published model."""

    def sizes_of(self, weights: Weights) -> str:  # noqa: ARG002 - used by subclasses
        """Return the folder of `configs/` for a checkpoint that is a single file."""
        return self.sizes

    def further_sizes(self, weights: Weights) -> dict[str, Any]:  # noqa: ARG002 - used by subclasses
        """Return further sizes of the UNet, read from a checkpoint that is a single file."""
        return {}

    @abstractmethod
    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        """Return whether a diffusers folder with these configurations belongs to the family."""

    def output(self, network: Any, call: Call) -> Tensor:
        x = call.x
        tokens = _joined_texts(network, call).to(x.dtype)
        inputs = self.further_inputs(network, call)
        controls = [each.controls for each in call.parts]
        inputs |= residuals(
            controls, call.counts, x=x, timesteps=call.times, tokens=tokens, inputs=inputs
        )
        adapters = [each.adapters for each in call.parts]
        prompts = [each.prompts for each in call.parts]
        groundings = [each.condition.grounding for each in call.parts]
        with (
            updated(network, adapters, call.counts),
            prompted(network, prompts, call.counts),
            grounded(network, groundings, call.counts, x),
        ):
            found: Tensor = network(call.inputs, call.times, tokens, return_dict=False, **inputs)[0]
        return found

    def further_inputs(self, network: Any, call: Call) -> dict[str, Any]:  # noqa: ARG002 - used by subclasses
        """Return the inputs of the UNet besides latents, times and tokens."""
        return {}

    def sharing(self, levels: NoiseLevels, tokens: int) -> Hashable:
        return id(levels), tokens if tokens > _SHARED_TOKENS else None

    def require_own(self, network: Any, condition: Condition) -> None:
        width, own = condition.tokens.shape[-1], network.config.cross_attention_dim
        if width != own or not self.is_complete(condition):
            raise EngineError(
                f"the text was encoded for another model: it has the width {width}, but this model "
                f"({self}) needs {own}; encode it with the CLIP of the same checkpoint"
            )
        for control in condition.controls:
            require_unet_control(control)
        if condition.grounding is not None:
            condition.grounding.require_fitting(network)

    def is_complete(self, condition: Condition) -> bool:  # noqa: ARG002 - used by subclasses
        """Return whether the condition has all inputs that the network needs."""
        return True

    def layers(self, network: Any) -> LayersByName:
        return unet_layers(network)

    def with_pictures(
        self,
        network: Any,
        condition: Condition,
        *,
        clean: Tensor,
        mask: Mask | None,
        scaled: Callable[[Tensor], Tensor],
    ) -> Condition:
        image, channels = condition.concat_image, network.config.in_channels
        if channels not in {_INPAINTING_CHANNELS, _INSTRUCTION_CHANNELS}:
            return condition
        require_channels(image, clean.shape[1], self.traits.title)
        if channels == _INPAINTING_CHANNELS:
            found = inpainting_channels(image, clean=clean, mask=mask, scaled=scaled)
        elif image is None:
            found = torch.zeros_like(clean)
        else:
            # InstructPix2Pix was trained on latents of the VAE without a scale (arXiv:2211.09800),
            # and CosXL Edit on scaled latents.
            found = fitted_image(image.samples, clean)
            found = scaled(found) if getattr(network, "scales_pictures", False) else found
        return replace(condition, concat_latent=found)


def has_sizes(unet: Mapping[str, Any]) -> bool:
    """Return whether a UNet of that configuration has size conditioning as an input."""
    return unet.get("addition_embed_type") == _HAS_SIZES


def _joined_texts(network: Any, call: Call) -> Tensor:
    texts = [each.condition.tokens for each in call.parts]
    cache: CrossAttentionCache | None = getattr(network, "cross_attention_cache", None)
    if cache is None:
        return join_texts(texts, call.counts, call.text_length)
    adapters = [each.adapters for each in call.parts]
    return cache.join_texts(texts, call.counts, call.text_length, adapters=adapters)


_LAST_NORM_BIAS = f"{UNET}output_blocks.11.1.transformer_blocks.0.norm1.bias"
_LEAST_V_DEVIATION = 0.09
_CLASS_EMBEDDING = f"{UNET}label_emb.0.0.weight"
_PROJECTED = "projection"
"""The `class_embed_type` of UNets that are conditioned on images."""


class SD1(UNetFamily):
    traits = table.SD1
    encoders = (("text_encoder", CLIP_L),)
    sizes = "sd15"

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return not has_sizes(unet) and not _has_open_clip(encoders)


class SD2(UNetFamily):
    """Stable Diffusion 2. Most models predict noise; the models for 768 pixels predict v.

    unCLIP models are also conditioned on images.
    """

    traits = table.SD2
    encoders = (("text_encoder", CLIP_H),)
    sizes = "sd20"

    def sizes_of(self, weights: Weights) -> str:
        return "sd21" if _predicts_velocity(weights) else self.sizes

    def further_sizes(self, weights: Weights) -> dict[str, Any]:
        if _CLASS_EMBEDDING not in weights.shapes:
            return {}
        width = weights.shapes[_CLASS_EMBEDDING][-1]
        return {
            "class_embed_type": _PROJECTED,
            "projection_class_embeddings_input_dim": width,
        }

    def with_images(self, network: Any, condition: Condition, seed: int) -> Condition:
        width = _label_width(network)
        if not condition.unclip or width is None:
            return condition
        labels = class_labels(condition.unclip, seed, width=width)
        return replace(condition, class_labels=copied(labels, device_of(network)))

    def further_inputs(self, network: Any, call: Call) -> dict[str, Any]:
        width = _label_width(network)
        if width is None:
            return {}
        none = torch.zeros(1, width, device=call.x.device)
        labels = [none if c.class_labels is None else c.class_labels for c in call.conditions]
        return {"class_labels": torch.cat(labels).to(call.x)}

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return not has_sizes(unet) and _has_open_clip(encoders)


def _label_width(network: Any) -> int | None:
    """Return the width of an unCLIP UNet's image input, or None for any other UNet."""
    if network.config.class_embed_type != _PROJECTED:
        return None
    width: int = network.config.projection_class_embeddings_input_dim
    return width


def _has_open_clip(encoders: Mapping[str, Mapping[str, Any]]) -> bool:
    return encoders.get("text_encoder", {}).get("hidden_act") == "gelu"


def _predicts_velocity(weights: Weights) -> bool:
    """Return whether a model of Stable Diffusion 2 predicts v. unCLIP models always do.

    The keys and shapes of the weights do not show this, but one bias has a much larger standard
    deviation in models that predict v. ComfyUI uses the same bias.
    """
    if _CLASS_EMBEDDING in weights.shapes:
        return True
    if _LAST_NORM_BIAS not in weights.shapes:
        return False
    with weights.opened() as read:
        deviation = read(_LAST_NORM_BIAS).to(torch.float32).std(correction=0)
    return bool(deviation > _LEAST_V_DEVIATION)


class _SizeConditioned(UNetFamily):
    """A UNet with two more inputs: the pooled vector of a text, and the size conditioning.

    The size conditioning is described in section 2.2 of Podell et al. 2023.
    """

    scores: ClassVar[tuple[float, float] | None] = None
    """The aesthetic scores of a positive and a negative text, in place of the target size."""

    def further_inputs(self, network: Any, call: Call) -> dict[str, Any]:  # noqa: ARG002 - the method is inherited
        pooled, time_ids = [], []
        for part in call.parts:
            assert part.condition.pooled is not None  # `is_complete` has checked this.
            pooled.append(part.condition.pooled.expand(part.count, -1))
            time_ids += [part.condition.size_conditioning] * part.count
        added = {
            "text_embeds": torch.cat(pooled).to(call.x.device, call.x.dtype),
            "time_ids": copied(torch.tensor(time_ids), call.x.device),
        }
        return {"added_cond_kwargs": added}

    def is_complete(self, condition: Condition) -> bool:
        return condition.pooled is not None

    def with_size_conditioning(
        self, conditioning: Conditioning, latent: Tensor, *, negative: bool
    ) -> Conditioning:
        """Add the size of `latent` (batch, 4, h, w), without a crop, to texts that have no size."""
        height, width = (float(side * PIXELS_PER_LATENT) for side in latent.shape[2:])
        size = (height, width)
        last = size if self.scores is None else (self.scores[negative],)
        whole = (*size, 0.0, 0.0, *last)
        return tuple(
            replace(each, size_conditioning=self._size_conditioning(each, whole))
            for each in conditioning
        )

    def _size_conditioning(
        self, condition: Condition, whole: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Return the size inputs of the text, or `whole` if the text has no size inputs.

        In a text for the base model, the refiner replaces the target size by the score. In a text
        for the refiner, the base model replaces the score by the original size.
        """
        given = condition.size_conditioning
        if given is None or len(given) == len(whole):
            return given or whole
        return (*given[:4], *(given[:2] if self.scores is None else whole[4:]))


class SDXL(_SizeConditioned):
    traits = table.SDXL
    encoders = (("text_encoder", SDXL_CLIP_L), ("text_encoder_2", CLIP_G))
    sizes = "sdxl_base"

    def with_images(self, network: Any, condition: Condition, seed: int) -> Condition:  # noqa: ARG002 - the method is inherited
        """Return the condition with the encoded image in place of the pooled text."""
        pooled = condition.pooled
        if not condition.unclip or pooled is None:
            return condition
        width = pooled.shape[1]
        labels = class_labels(condition.unclip, seed, width=2 * width)
        return replace(condition, pooled=labels[:, :width].to(pooled))

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return has_sizes(unet) and "text_encoder" in encoders


class Refiner(_SizeConditioned):
    traits = table.SDXL_REFINER
    encoders = (("text_encoder_2", CLIP_G),)
    sizes = "sdxl_refiner"
    scores = (6.0, 2.5)
    """The same values as in diffusers and ComfyUI."""

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return has_sizes(unet) and "text_encoder" not in encoders
