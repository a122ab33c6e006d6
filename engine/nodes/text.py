"""Nodes that turn text into conditioning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.batcher import Work
from engine.declarations import Int, Link, String, node

if TYPE_CHECKING:
    from engine.diffusion.checkpoints import Clip
    from engine.diffusion.conditioning import Conditioning
    from engine.diffusion.context import Context


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
        "text": String(multiline=True, tooltip="The text; (word) and (word:1.3) weigh it."),
        "clip": Link("CLIP"),
    },
    outputs=("CONDITIONING",),
    category="conditioning",
    display_name="CLIP Text Encode (Prompt)",
)
def clip_text_encode(context: Context, text: str, clip: Clip) -> Work[tuple[Conditioning]]:
    """Encodes a text with a CLIP model, to guide the denoising towards it."""
    conditioning = yield from context.encode(clip, text)
    return (conditioning,)
