"""Stable Diffusion 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.diffusion.families.unet import UNetFamily, has_sizes
from engine.diffusion.loading.weights import Weights
from engine.diffusion.text.text_encoders import CLIP_H, CLIP_L
from engine.families import stable_diffusion
from engine.families.family import UNET

_LAST_NORM_BIAS = f"{UNET}output_blocks.11.1.transformer_blocks.0.norm1.bias"
_LEAST_V_DEVIATION = 0.09


class SD1(UNetFamily):
    traits = stable_diffusion.SD1
    encoders = (("text_encoder", CLIP_L),)
    sizes = "sd15"

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return not has_sizes(unet) and not _has_open_clip(encoders)


class SD2(UNetFamily):
    """Predicts noise, or v in the models of 768 pixels."""

    traits = stable_diffusion.SD2
    encoders = (("text_encoder", CLIP_H),)
    sizes = "sd20"

    def sizes_of(self, weights: Weights) -> str:
        return "sd21" if _predicts_velocity(weights) else self.sizes

    def is_folder(self, unet: Mapping[str, Any], encoders: Mapping[str, Mapping[str, Any]]) -> bool:
        return not has_sizes(unet) and _has_open_clip(encoders)


def _has_open_clip(encoders: Mapping[str, Mapping[str, Any]]) -> bool:
    return encoders.get("text_encoder", {}).get("hidden_act") == "gelu"


def _predicts_velocity(weights: Weights) -> bool:
    """Whether a Stable Diffusion 2 predicts v, which its keys and shapes do not say.

    One bias has a much larger standard deviation in the 768 px models, which were trained on v.
    ComfyUI decides by the same bias.
    """
    if _LAST_NORM_BIAS not in weights.shapes:
        return False
    with weights.opened() as read:
        deviation = read(_LAST_NORM_BIAS).to(torch.float32).std(correction=0)
    return bool(deviation > _LEAST_V_DEVIATION)
