"""Nodes that encode texts as conditionings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import (
    CHUNK_TOKENS,
    ConditioningShape,
    Estimate,
    ModelShape,
    model_shape,
    text_tokens,
)
from engine.graph.declarations import Float, Int, Link, String, node
from engine.nodes.sides import MAX_SIDE

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.text.encoding import Clip, FamilyTexts

_NUMBER_BYTES = 4
_TEXT = String(
    multiline=True,
    dynamic_prompts=True,
    tooltip="The text to encode. (word) and (word:1.3) give a word more weight.",
)


def _side(default: int, tooltip: str) -> Int:
    return Int(default, min=0, max=MAX_SIDE, tooltip=tooltip)


def encoding_estimate(conditioning: ConditioningShape, clip: ModelShape) -> Estimate:
    """Return the cost to encode the texts of a conditioning."""
    traits = clip.traits
    encoded = replace(
        conditioning,
        tokens=max(conditioning.tokens, traits.least_tokens),
        token_bytes=_NUMBER_BYTES * traits.text_width,
    )
    chunks = encoded.texts * encoded.tokens / CHUNK_TOKENS
    return Estimate((encoded,), work=chunks * work.CHUNK * traits.work.text)


def texts_estimate(inputs: Mapping[str, Any], *, names: Sequence[str]) -> Estimate:
    """Return the cost to encode the texts in the inputs `names`, each by another text encoder."""
    tokens = max(text_tokens(inputs[name]) for name in names)
    return encoding_estimate(ConditioningShape(1, tokens), model_shape(inputs["clip"]))


_text_estimate = partial(texts_estimate, names=("text",))


@node(
    "CLIPSetLastLayer",
    inputs={
        "clip": Link("CLIP"),
        "stop_at_clip_layer": Int(
            -1,
            min=-24,
            max=-1,
            tooltip="The layer to stop at: -1 is the last layer, -2 the one before.",
        ),
    },
    outputs=("CLIP",),
    category="conditioning",
    display_name="CLIP Set Last Layer",
)
def clip_set_last_layer(context: Context, clip: Clip, stop_at_clip_layer: int) -> tuple[Clip]:
    """Takes the text encoding from an earlier layer ("clip skip")."""
    return (clip.stopping_at(stop_at_clip_layer),)


@node(
    "CLIPTextEncode",
    inputs={
        "text": _TEXT,
        "clip": Link("CLIP"),
    },
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="CLIP Text Encode (Prompt)",
    estimate=_text_estimate,
)
def clip_text_encode(
    context: Context, text: str, clip: Clip | FamilyTexts
) -> Work[tuple[Conditioning]]:
    """Encodes a text with a CLIP model, to guide the denoising towards it."""
    conditioning = yield from context.encode(clip, text)
    return (conditioning,)


@node(
    "CLIPTextEncodeSDXL",
    inputs={
        "clip": Link("CLIP"),
        "width": _side(1024, "The original size of the picture to imitate, in pixels."),
        "height": _side(1024, "The original size of the picture to imitate, in pixels."),
        "crop_w": _side(0, "The number of pixels that were cut off at the left of the picture."),
        "crop_h": _side(0, "The number of pixels that were cut off at the top of the picture."),
        "target_width": _side(1024, "The size of the picture after cropping, in pixels."),
        "target_height": _side(1024, "The size of the picture after cropping, in pixels."),
        "text_g": _TEXT,
        "text_l": _TEXT,
    },
    outputs=("CONDITIONING",),
    category="advanced/conditioning",
    estimate=partial(texts_estimate, names=("text_g", "text_l")),
)
def clip_text_encode_sdxl(
    context: Context,
    *,
    clip: Clip,
    width: int,
    height: int,
    crop_w: int,
    crop_h: int,
    target_width: int,
    target_height: int,
    text_g: str,
    text_l: str,
) -> Work[tuple[Conditioning]]:
    """Encodes one text for each text encoder of SDXL, with the size conditioning."""
    sizes = (height, width, crop_h, crop_w, target_height, target_width)
    conditioning = yield from context.encode_pair(clip, text_l, text_g, size_conditioning=sizes)
    return (conditioning,)


@node(
    "CLIPTextEncodeSDXLRefiner",
    inputs={
        "ascore": Float(
            6.0, min=0.0, max=1000.0, tooltip="The aesthetic score that the image should reach."
        ),
        "width": _side(1024, "The original size of the picture to imitate, in pixels."),
        "height": _side(1024, "The original size of the picture to imitate, in pixels."),
        "text": _TEXT,
        "clip": Link("CLIP"),
    },
    outputs=("CONDITIONING",),
    category="advanced/conditioning",
    estimate=_text_estimate,
)
def clip_text_encode_sdxl_refiner(
    context: Context, *, ascore: float, width: int, height: int, text: str, clip: Clip
) -> Work[tuple[Conditioning]]:
    """Encodes a text for SDXL's refiner, with its size conditioning and aesthetic score."""
    sizes = (height, width, 0, 0, ascore)
    return ((yield from context.encode_pair(clip, text, text, size_conditioning=sizes)),)
