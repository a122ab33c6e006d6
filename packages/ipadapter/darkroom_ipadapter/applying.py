"""The steps that make an image prompt from an adapter and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from darkroom_ipadapter.adapter import Adapter
from darkroom_ipadapter.prompts import Project, combined, for_both_conditionings, with_count
from darkroom_ipadapter.weights import LayerWeight
from engine.batcher import Work
from engine.diffusion.context import Context
from engine.diffusion.images.latents import Images, Mask
from engine.diffusion.vision.attended import CrossAttention, ImagePrompt, KeysValues
from engine.diffusion.vision.clip_vision import ClipVisionOutput
from engine.errors import EngineError

EncodedPictures: TypeAlias = tuple[Tensor, Tensor]
"""The encoded pictures for the positive and the negative conditioning."""
Pairs: TypeAlias = tuple[list[KeysValues], list[KeysValues]]
_BLACK_SIDE = 224


def layers_for(layers: Sequence[CrossAttention], adapter: Adapter) -> Sequence[CrossAttention]:
    """Return `layers`. Raises EngineError if the adapter was made for another family of models."""
    own = [len(each) for each in adapter.to_keys]
    if own != [each.width for each in layers]:
        raise EngineError(
            f"{adapter.name} was made for another family of models: it has {len(own)} layers, but "
            f"this model has {len(layers)}, or the layers have other widths"
        )
    return layers


def encode_pictures(
    context: Context, adapter: Adapter, clip_vision: Any, *, image: Images, negative: Images | None
) -> Work[EncodedPictures]:
    """Encode the pictures for the adapter.

    If there is no negative picture, a "plus" adapter gets a black picture, and other adapters get
    zeros.
    """
    if negative is None and adapter.is_plus:
        negative = torch.zeros(1, _BLACK_SIDE, _BLACK_SIDE, 3)
    encoded = yield from context.vision.encode(clip_vision, image, crop=True)
    positive = _output_for(encoded, adapter)
    if negative is None:
        return positive, torch.zeros_like(positive)
    others = yield from context.vision.encode(clip_vision, negative, crop=True)
    return positive, with_count(_output_for(others, adapter), len(positive))


def _output_for(encoded: ClipVisionOutput, adapter: Adapter) -> Tensor:
    output = encoded.penultimate_hidden_states if adapter.is_plus else encoded.image_embeds
    if (width := output.shape[-1]) != adapter.vision_width:
        raise EngineError(
            f"{adapter.name} was made for another CLIP vision model: it needs "
            f"{adapter.vision_width} numbers from it, but this one returns {width}"
        )
    return output


def projected(adapter: Adapter, pictures: EncodedPictures, combining: str) -> Work[Pairs]:
    """Return the keys and values of all layers, for the positive and the negative pictures."""
    positive = combined(pictures[0], combining)
    negative = with_count(pictures[1], len(positive))
    found = yield Project(adapter, torch.cat([positive, negative]))
    halves = [(_half(each, 0), _half(each, 1)) for each in found]
    return [each for each, _ in halves], [each for _, each in halves]


def _half(pair: KeysValues, which: int) -> KeysValues:
    return KeysValues(pair.keys.chunk(2)[which], pair.values.chunk(2)[which])


def prompt_of(
    layers: Sequence[CrossAttention],
    pairs: Pairs,
    of_layers: Sequence[LayerWeight],
    scaling: str,
) -> ImagePrompt:
    """Return the image prompt for the layers. Layers with a weight of 0 are left out."""
    found = {
        layer.name: for_both_conditionings(positive, negative, own, scaling)
        for layer, positive, negative, own in zip(layers, *pairs, of_layers, strict=True)
        if own.weight
    }
    return ImagePrompt(
        {name: each for name, (each, _) in found.items()},
        {name: each for name, (_, each) in found.items()},
    )


def with_mask_and_range(
    prompt: ImagePrompt, mask: Mask | None, shares: tuple[float, float]
) -> ImagePrompt:
    """Return the prompt, limited to a part of the image and to a range of the timesteps."""
    return replace(prompt, mask=mask, percent_range=shares)
