"""Nodes that put images and latents over others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import BatchShape, Estimate
from engine.graph.declarations import Boolean, Choice, Float, Link, node
from engine.nodes.sides import CELL, CELL_PLACE, PLACE

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask

_RESIZE = Boolean(False, tooltip="Brings the source to the destination's size.")
_MASK = Link("MASK", tooltip="Where the source is seen; brought to its size.")
_MODES = ("normal", "multiply", "screen", "overlay", "soft_light", "difference")
_COPIES = 6
"""Both images in one size, the mask, and what a mode of blending makes on the way."""


def _over_estimate(below: BatchShape, above: BatchShape, factor: float) -> Estimate:
    count = max(below.count, above.count)
    largest = max(below.counted(count), above.counted(count), key=lambda each: each.size_bytes)
    return Estimate(
        (below.counted(below.count),),
        work=largest.megapixels * factor,
        scratch_bytes=_COPIES * largest.size_bytes,
    )


def _composite_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _over_estimate(inputs["destination"], inputs["source"], work.RESAMPLE)


def _blend_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, second = inputs["image1"], inputs["image2"]
    both = first.counted(max(first.count, second.count))
    return _over_estimate(both, second, work.RESAMPLE)


@node(
    "ImageCompositeMasked",
    inputs={
        "destination": Link("IMAGE"),
        "source": Link("IMAGE"),
        "x": PLACE,
        "y": PLACE,
        "resize_source": _RESIZE,
    },
    optional={"mask": _MASK},
    outputs=("IMAGE",),
    category="image",
    estimate=_composite_estimate,
)
def image_composite_masked(
    context: Context,
    *,
    destination: Images,
    source: Images,
    x: int,
    y: int,
    resize_source: bool,
    mask: Mask | None = None,
) -> tuple[Images]:
    """Puts images over others, as much as a mask says."""
    from engine.diffusion.images.compositing import pasted

    below, above = destination.movedim(-1, 1), source.movedim(-1, 1)
    found = pasted(below, above, x=x, y=y, mask=mask, resized=resize_source)
    return (found.movedim(1, -1),)


@node(
    "LatentCompositeMasked",
    inputs={
        "destination": Link("LATENT"),
        "source": Link("LATENT"),
        "x": CELL_PLACE,
        "y": CELL_PLACE,
        "resize_source": _RESIZE,
    },
    optional={"mask": _MASK},
    outputs=("LATENT",),
    category="latent",
    estimate=_composite_estimate,
)
def latent_composite_masked(
    context: Context,
    *,
    destination: Latent,
    source: Latent,
    x: int,
    y: int,
    resize_source: bool,
    mask: Mask | None = None,
) -> tuple[Latent]:
    """Puts latents over others, as much as a mask says."""
    from engine.diffusion.images.compositing import pasted

    place = {"x": x // CELL, "y": y // CELL}
    below, above = destination.samples, source.samples
    found = pasted(below, above, **place, mask=mask, resized=resize_source)
    return (replace(destination, samples=found),)


@node(
    "ImageBlend",
    inputs={
        "image1": Link("IMAGE"),
        "image2": Link("IMAGE", tooltip="Brought to the size of the first."),
        "blend_factor": Float(0.5, min=0.0, max=1.0, tooltip="How much the blend counts."),
        "blend_mode": Choice(_MODES),
    },
    outputs=("IMAGE",),
    category="image/postprocessing",
    estimate=_blend_estimate,
)
def image_blend(
    context: Context, *, image1: Images, image2: Images, blend_factor: float, blend_mode: str
) -> tuple[Images]:
    """Blends two images."""
    from engine.diffusion.images.compositing import blended

    return (blended(image1, image2, factor=blend_factor, mode=blend_mode),)
