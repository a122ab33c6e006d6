"""Nodes that encode texts as conditionings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
    from engine.diffusion.text.encoding import Clip
    from engine.diffusion.text.family_texts import FamilyTexts

_NUMBER_BYTES = 4
_TEXT = String(multiline=True, tooltip="The text; (word) and (word:1.3) weigh it.")


def _side(default: int, tooltip: str) -> Int:
    return Int(default, min=0, max=MAX_SIDE, tooltip=tooltip)


def encoding_estimate(conditioning: ConditioningShape, clip: ModelShape) -> Estimate:
    """What it costs to encode the texts of a conditioning."""
    traits = clip.traits
    encoded = replace(
        conditioning,
        tokens=max(conditioning.tokens, traits.least_tokens),
        token_bytes=_NUMBER_BYTES * traits.text_width,
    )
    chunks = encoded.texts * encoded.tokens / CHUNK_TOKENS
    return Estimate((encoded,), work=chunks * work.CHUNK * traits.work.text)


def texts_estimate(inputs: Mapping[str, Any], *names: str) -> Estimate:
    """The same of the texts in those inputs, which are encoded beside each other."""
    tokens = max(text_tokens(inputs[name]) for name in names)
    return encoding_estimate(ConditioningShape(1, tokens), model_shape(inputs["clip"]))


def _text_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return texts_estimate(inputs, "text")


def _pair_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return texts_estimate(inputs, "text_g", "text_l")


@node(
    "CLIPSetLastLayer",
    inputs={
        "clip": Link("CLIP"),
        "stop_at_clip_layer": Int(
            -1, min=-24, max=-1, tooltip="-1 is the last layer, -2 the one before."
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
        "width": _side(1024, "Of the picture that it is to be like, in pixels."),
        "height": _side(1024, "Of the picture that it is to be like, in pixels."),
        "crop_w": _side(0, "What was cut off at its left."),
        "crop_h": _side(0, "What was cut off at its top."),
        "target_width": _side(1024, "Of the picture after that."),
        "target_height": _side(1024, "Of the picture after that."),
        "text_g": _TEXT,
        "text_l": _TEXT,
    },
    outputs=("CONDITIONING",),
    category="advanced/conditioning",
    display_name="CLIPTextEncodeSDXL",
    estimate=_pair_estimate,
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
    """Encodes a text for each of SDXL's text encoders, with its size conditioning."""
    sizes = (height, width, crop_h, crop_w, target_height, target_width)
    conditioning = yield from context.encode_pair(clip, text_l, text_g, size_conditioning=sizes)
    return (conditioning,)


@node(
    "CLIPTextEncodeSDXLRefiner",
    inputs={
        "ascore": Float(6.0, min=0.0, max=1000.0, tooltip="The aesthetic score to come up to."),
        "width": _side(1024, "Of the picture that it is to be like, in pixels."),
        "height": _side(1024, "Of the picture that it is to be like, in pixels."),
        "text": _TEXT,
        "clip": Link("CLIP"),
    },
    outputs=("CONDITIONING",),
    category="advanced/conditioning",
    display_name="CLIPTextEncodeSDXLRefiner",
    estimate=_text_estimate,
)
def clip_text_encode_sdxl_refiner(
    context: Context, *, ascore: float, width: int, height: int, text: str, clip: Clip
) -> Work[tuple[Conditioning]]:
    """Encodes a text for SDXL's refiner, with its size conditioning and aesthetic score."""
    sizes = (height, width, 0, 0, ascore)
    return ((yield from context.encode_pair(clip, text, text, size_conditioning=sizes)),)
