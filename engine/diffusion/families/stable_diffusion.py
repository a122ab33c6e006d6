"""Stable Diffusion 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.families.family import Call
from engine.diffusion.families.unet import UNetFamily, has_sizes
from engine.diffusion.loading.weights import Weights
from engine.diffusion.text.text_encoders import CLIP_H, CLIP_L
from engine.diffusion.vision.unclip import class_labels
from engine.families import stable_diffusion
from engine.families.family import UNET

_LAST_NORM_BIAS = f"{UNET}output_blocks.11.1.transformer_blocks.0.norm1.bias"
_LEAST_V_DEVIATION = 0.09
_CLASS_EMBEDDING = f"{UNET}label_emb.0.0.weight"
_PROJECTED = "projection"
"""The `class_embed_type` of UNets that are told of images."""


class SD1(UNetFamily):
    traits = stable_diffusion.SD1
    encoders = (("text_encoder", CLIP_L),)
    sizes = "sd15"

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return not has_sizes(unet) and not _has_open_clip(encoders)


class SD2(UNetFamily):
    """Predicts noise, or v in the models of 768 pixels. Those of unCLIP are told of images."""

    traits = stable_diffusion.SD2
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

    def told_of_images(self, network: Any, condition: Condition, seed: int) -> Condition:
        width = _label_width(network)
        if not condition.unclip or width is None:
            return condition
        labels = class_labels(condition.unclip, seed, width=width)
        return replace(condition, class_labels=labels)

    def further_inputs(self, network: Any, call: Call) -> dict[str, Any]:
        width = _label_width(network)
        if width is None:
            return {}
        none = torch.zeros(1, width)
        labels = [none if c.class_labels is None else c.class_labels for c in call.conditions]
        return {"class_labels": torch.cat(labels).to(call.x)}

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return not has_sizes(unet) and _has_open_clip(encoders)


def _label_width(network: Any) -> int | None:
    """The width of what a UNet of unCLIP is told of images; None for another one."""
    if network.config.class_embed_type != _PROJECTED:
        return None
    width: int = network.config.projection_class_embeddings_input_dim
    return width


def _has_open_clip(encoders: Mapping[str, Mapping[str, Any]]) -> bool:
    return encoders.get("text_encoder", {}).get("hidden_act") == "gelu"


def _predicts_velocity(weights: Weights) -> bool:
    """Whether a Stable Diffusion 2 predicts v, which its keys and shapes do not say.

    One bias has a much larger standard deviation in the 768 px models, which were trained on v.
    ComfyUI decides by the same bias. Those of unCLIP are made of the 768 px models.
    """
    if _CLASS_EMBEDDING in weights.shapes:
        return True
    if _LAST_NORM_BIAS not in weights.shapes:
        return False
    with weights.opened() as read:
        deviation = read(_LAST_NORM_BIAS).to(torch.float32).std(correction=0)
    return bool(deviation > _LEAST_V_DEVIATION)
