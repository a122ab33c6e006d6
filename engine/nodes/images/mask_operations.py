"""Nodes that make masks of masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, MaskShape
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, node
from engine.nodes.sides import MAX_SIDE, PLACE

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Mask

_SIDE = Int(512, min=1, max=MAX_SIDE, limit="longest_side", tooltip="In pixels.")
_OPERATIONS = ("multiply", "add", "subtract", "and", "or", "xor")


def _changed(mask: MaskShape, *, times: float = 1.0, copies: int = 2) -> Estimate:
    """A mask of the same size, of which each pixel is made anew so many times."""
    plain = MaskShape(mask.count, mask.width, mask.height)
    return Estimate(
        (plain,), work=mask.megapixels * work.COPY * times, scratch_bytes=copies * plain.size_bytes
    )


def _solid_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _changed(MaskShape(1, inputs["width"], inputs["height"]), copies=0)


def _mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _changed(inputs["mask"])


def _composite_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _changed(inputs["destination"])


def _crop_estimate(inputs: Mapping[str, Any]) -> Estimate:
    mask: MaskShape = inputs["mask"]
    sides = min(mask.width, inputs["width"]), min(mask.height, inputs["height"])
    # The part is a view of the mask, so that stays.
    return Estimate((MaskShape(mask.count, *sides, mask.size_bytes),))


def _grow_estimate(inputs: Mapping[str, Any]) -> Estimate:
    mask: MaskShape = inputs["mask"]
    by = min(abs(inputs["expand"]), mask.width + mask.height)
    times = 1 + 2 * (by if inputs["tapered_corners"] else by.bit_length())
    return _changed(mask, times=times, copies=5)


def _colour_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    mask = MaskShape(images.count, images.width, images.height)
    return Estimate(
        (mask,), work=images.megapixels * work.COPY, scratch_bytes=2 * images.size_bytes
    )


@node(
    "SolidMask",
    inputs={
        "value": Float(1.0, min=0.0, max=1.0),
        "width": _SIDE,
        "height": _SIDE,
    },
    outputs=("MASK",),
    category="mask",
    pixel_inputs=("width", "height"),
    estimate=_solid_estimate,
)
def solid_mask(context: Context, value: float, width: int, height: int) -> tuple[Mask]:
    """Makes a mask of one value."""
    return (context.images.solid_mask(width, height, value),)


@node(
    "InvertMask",
    inputs={"mask": Link("MASK")},
    outputs=("MASK",),
    category="mask",
    estimate=_mask_estimate,
)
def invert_mask(context: Context, mask: Mask) -> tuple[Mask]:
    """Makes a mask of what another leaves out."""
    return (1.0 - mask,)


@node(
    "MaskComposite",
    inputs={
        "destination": Link("MASK"),
        "source": Link("MASK"),
        "x": PLACE,
        "y": PLACE,
        "operation": Choice(_OPERATIONS, tooltip="Of each pair of values."),
    },
    outputs=("MASK",),
    category="mask",
    estimate=_composite_estimate,
)
def mask_composite(
    context: Context, *, destination: Mask, source: Mask, x: int, y: int, operation: str
) -> tuple[Mask]:
    """Puts one mask over another."""
    from engine.diffusion.images import masks

    return (masks.composed(destination, source, x=x, y=y, operation=operation),)


@node(
    "CropMask",
    inputs={"mask": Link("MASK"), "x": PLACE, "y": PLACE, "width": _SIDE, "height": _SIDE},
    outputs=("MASK",),
    category="mask",
    estimate=_crop_estimate,
)
def crop_mask(
    context: Context, *, mask: Mask, x: int, y: int, width: int, height: int
) -> tuple[Mask]:
    """Cuts a rectangle out of a mask."""
    from engine.diffusion.images import masks

    return (masks.cropped(mask, x=x, y=y, width=width, height=height),)


@node(
    "GrowMask",
    inputs={
        "mask": Link("MASK"),
        "expand": Int(
            0, min=-MAX_SIDE, max=MAX_SIDE, tooltip="In pixels; a negative number shrinks it."
        ),
        "tapered_corners": Boolean(True, tooltip="Grows a diamond around each pixel, no square."),
    },
    outputs=("MASK",),
    category="mask",
    display_name="Grow Mask",
    estimate=_grow_estimate,
)
def grow_mask(
    context: Context, mask: Mask, expand: int, tapered_corners: bool
) -> Work[tuple[Mask]]:
    """Makes a mask larger, or smaller."""
    from engine.diffusion.images import masks

    return ((yield from masks.grown(mask, expand, tapered=tapered_corners)),)


@node(
    "FeatherMask",
    inputs={"mask": Link("MASK"), "left": PLACE, "top": PLACE, "right": PLACE, "bottom": PLACE},
    outputs=("MASK",),
    category="mask",
    estimate=_mask_estimate,
)
def feather_mask(
    context: Context, *, mask: Mask, left: int, top: int, right: int, bottom: int
) -> tuple[Mask]:
    """Makes a mask fall softly towards its sides."""
    from engine.diffusion.images import masks

    return (masks.feathered(mask, left=left, top=top, right=right, bottom=bottom),)


@node(
    "ThresholdMask",
    inputs={"mask": Link("MASK"), "value": Float(0.5, min=0.0, max=1.0)},
    outputs=("MASK",),
    category="mask",
    estimate=_mask_estimate,
)
def threshold_mask(context: Context, mask: Mask, value: float) -> tuple[Mask]:
    """Sets a mask to 1 where it is above a value, and to 0 elsewhere."""
    return ((mask > value).float(),)


@node(
    "ImageColorToMask",
    inputs={
        "image": Link("IMAGE"),
        "color": Int(0, min=0, max=0xFFFFFF, tooltip="Red, green and blue, a byte each."),
    },
    outputs=("MASK",),
    category="mask",
    estimate=_colour_estimate,
)
def image_color_to_mask(context: Context, image: Images, color: int) -> tuple[Mask]:
    """Masks what has exactly one colour."""
    from engine.diffusion.images import masks

    return (masks.of_colour(image, color),)
