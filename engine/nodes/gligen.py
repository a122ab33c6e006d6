"""Nodes that load and apply GLIGEN, which places texts in boxes of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.errors import EngineError
from engine.graph.cost import ConditioningShape, Estimate
from engine.graph.declarations import Choice, Int, Link, String, node
from engine.graph.models_folder import GLIGENS
from engine.nodes.loaders import load_part_estimate
from engine.nodes.sides import CELL, MAX_SIDE
from engine.nodes.text import texts_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.conditioning.gligen import Gligen
    from engine.diffusion.context import Context
    from engine.diffusion.text.encoding import Clip, FamilyTexts


def _pixels(default: int, least: int, tooltip: str) -> Int:
    return Int(default, min=least, max=MAX_SIDE, step=CELL, tooltip=tooltip)


def _apply_estimate(inputs: Mapping[str, Any]) -> Estimate:
    conditioning: ConditioningShape = inputs["conditioning_to"]
    encoded = texts_estimate(inputs, names=("text",))
    return Estimate((replace(conditioning, has_boxes=True),), work=encoded.work)


@node(
    "GLIGENLoader",
    inputs={"gligen_name": Choice(folder=GLIGENS, tooltip="The GLIGEN to load.")},
    outputs=("GLIGEN",),
    category="loaders",
    estimate=load_part_estimate,
)
def gligen_loader(context: Context, gligen_name: str) -> Work[tuple[Gligen]]:
    """Loads a GLIGEN, which places texts in boxes of a picture."""
    from engine.diffusion.conditioning.gligen import read_gligen

    return ((yield from context.model(GLIGENS, gligen_name, read_gligen)),)


@node(
    "GLIGENTextBoxApply",
    inputs={
        "conditioning_to": Link("CONDITIONING"),
        "clip": Link("CLIP"),
        "gligen_textbox_model": Link("GLIGEN"),
        "text": String(multiline=True, dynamic_prompts=True, tooltip="What is in the box."),
        "width": _pixels(64, 8, "The width of the box in pixels."),
        "height": _pixels(64, 8, "The height of the box in pixels."),
        "x": _pixels(0, 0, "The left edge of the box in pixels."),
        "y": _pixels(0, 0, "The upper edge of the box in pixels."),
    },
    outputs=("CONDITIONING",),
    category="conditioning/gligen",
    estimate=_apply_estimate,
)
def gligen_text_box_apply(
    context: Context,
    *,
    conditioning_to: Conditioning,
    clip: Clip | FamilyTexts,
    gligen_textbox_model: Gligen,
    text: str,
    width: int,
    height: int,
    x: int,
    y: int,
) -> Work[tuple[Conditioning]]:
    """Says what is in a box of the picture. A negative conditioning without boxes gets those of the
    positive conditioning.
    """
    from engine.diffusion.conditioning.condition import in_box
    from engine.diffusion.conditioning.gligen import TextBox

    pooled = (yield from context.encode(clip, text))[0].pooled
    if pooled is None:
        raise EngineError("this CLIP is for another model: GLIGEN needs that of Stable Diffusion 1")
    box = TextBox(pooled, height // CELL, width // CELL, y // CELL, x // CELL)
    return (in_box(conditioning_to, gligen_textbox_model, box),)
