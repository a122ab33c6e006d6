"""Families whose network is a UNet that attends to texts of CLIP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.control.control_net import residuals
from engine.diffusion.cross_attention_cache import CrossAttentionCache, join_texts
from engine.diffusion.families.family import Call, ModelFamily
from engine.diffusion.loading.changes.layers import Known, unet_layers
from engine.diffusion.loading.weights import Weights
from engine.diffusion.row_updates import updated
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.text.text_encoders import TextEncoderSpec
from engine.diffusion.vision.row_prompts import prompted
from engine.errors import EngineError

_INPAINTING_CHANNELS = 9
_SHARED_TOKENS = 4 * 77
"""Longer prompts share calls only with prompts of their own length: they would slow down others."""
_HAS_SIZES = "text_time"
"""The `addition_embed_type` of UNets with size conditioning."""


class UNetFamily(ModelFamily):
    """A subclass says which text encoders it has and where its sizes are."""

    predicts_flow = False
    repeats_texts = True
    encoders: ClassVar[tuple[tuple[str, TextEncoderSpec], ...]]
    """The text encoders, each with the folder that holds its configuration."""
    sizes: ClassVar[str]
    """The folder of `configs/` with the sizes of the published model."""

    def sizes_of(self, weights: Weights) -> str:  # noqa: ARG002 - of a family with several models
        """The same, for the single file of a checkpoint."""
        return self.sizes

    def further_sizes(self, weights: Weights) -> dict[str, Any]:  # noqa: ARG002 - of a family with several models
        """What the single file of a checkpoint says of its UNet's sizes beside these."""
        return {}

    @abstractmethod
    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether a diffusers folder is of the family, by the configurations of its parts."""

    def output(self, network: Any, call: Call) -> Tensor:
        x, dtype = call.x, call.x.dtype
        tokens = _joined_texts(network, call).to(dtype)
        inputs = self.further_inputs(network, call)
        controls = [each.controls for each in call.parts]
        inputs |= residuals(
            controls, call.counts, x=x, timesteps=call.times, tokens=tokens, inputs=inputs
        )
        # All rows share the weights, so either each of them has such channels or none has.
        if extra := [each.concat_latent for each in call.parts if each.concat_latent is not None]:
            x = torch.cat([x, torch.cat(extra).to(dtype)], dim=1)
        adapters = [each.adapters for each in call.parts]
        prompts = [each.prompts for each in call.parts]
        with updated(network, adapters, call.counts), prompted(network, prompts, call.counts):
            found: Tensor = network(x, call.times, tokens, return_dict=False, **inputs)[0]
        return found

    def further_inputs(self, network: Any, call: Call) -> dict[str, Any]:  # noqa: ARG002 - of those that have any
        """What the UNet takes besides latents, times and tokens."""
        return {}

    def sharing(self, levels: NoiseLevels, tokens: int) -> Hashable:
        return id(levels), tokens if tokens > _SHARED_TOKENS else None

    def require_own(self, network: Any, condition: Condition) -> None:
        width, own = condition.tokens.shape[-1], network.config.cross_attention_dim
        if width != own or not self.is_complete(condition):
            raise EngineError(
                f"the text was encoded for another model: it is {width} wide, and this model "
                f"({self}) takes {own}; encode it with the CLIP of the same checkpoint"
            )

    def is_complete(self, condition: Condition) -> bool:  # noqa: ARG002 - of those that take more
        """Whether the condition has all that the network takes."""
        return True

    def layers(self, network: Any) -> Known:
        return unet_layers(network)

    def inpaints(self, network: Any) -> bool:
        return bool(network.config.in_channels == _INPAINTING_CHANNELS)


def has_sizes(unet: Mapping[str, Any]) -> bool:
    """Whether a UNet of that configuration takes size conditioning."""
    return unet.get("addition_embed_type") == _HAS_SIZES


def _joined_texts(network: Any, call: Call) -> Tensor:
    texts = [each.condition.tokens for each in call.parts]
    cache: CrossAttentionCache | None = getattr(network, "cross_attention_cache", None)
    if cache is None:
        return join_texts(texts, call.counts, call.text_length)
    adapters = [each.adapters for each in call.parts]
    return cache.join_texts(texts, call.counts, call.text_length, adapters=adapters)
