"""Nodes that crop, flip, rotate and measure images, and make batches of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, Scalar, saturated
from engine.graph.declarations import Choice, Float, Int, Link, node
from engine.nodes.images.image import METHODS, changed_images
from engine.nodes.sides import MAX_SIDE, PLACE

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images

FLIPS = Choice(("x-axis: vertically", "y-axis: horizontally"))
ROTATIONS = Choice(("none", "90 degrees", "180 degrees", "270 degrees"), tooltip="Clockwise.")
_SIDE = Int(512, min=1, max=MAX_SIDE, tooltip="In pixels.")
_MEGAPIXEL = 1024 * 1024


def quarter_turns(rotation: str) -> int:
    """How many times 90 degrees a rotation is."""
    return ROTATIONS.values.index(rotation)


def _crop_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    sides = min(images.width, inputs["width"]), min(images.height, inputs["height"])
    # The part is a view of the images, so they stay.
    return Estimate((ImageShape(images.count, *sides, images.size_bytes),))


def _flip_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_images(inputs["image"], inputs["image"], work.COPY)


def _rotate_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    turned = ImageShape(images.count, images.height, images.width)
    return changed_images(
        images, turned if quarter_turns(inputs["rotation"]) % 2 else images, work.COPY
    )


def _slice_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    part = images.counted(min(images.count, inputs["length"]))
    return Estimate((ImageShape(part.count, part.width, part.height, images.size_bytes),))


def _repeat_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    repeated = images.counted(saturated(images.count * inputs["amount"]))
    return changed_images(images, repeated, work.COPY)


def _size_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return Estimate((Scalar(images.width), Scalar(images.height), Scalar(images.count)))


def _total_sides(width: int, height: int, megapixels: float, multiple: int) -> tuple[int, int]:
    """The sides with that many pixels in the same proportions, as multiples."""
    factor = math.sqrt(megapixels * _MEGAPIXEL / (width * height))
    scaled = (round(side * factor / multiple) * multiple for side in (width, height))
    new_width, new_height = (max(1, side) for side in scaled)
    return new_width, new_height


def _total_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    sides = _total_sides(
        max(1, images.width),
        max(1, images.height),
        inputs["megapixels"],
        inputs.get("resolution_steps", 1),
    )
    return changed_images(images, images.sized(*sides), work.RESAMPLE)


@node(
    "ImageCrop",
    inputs={
        "image": Link("IMAGE"),
        "width": _SIDE,
        "height": _SIDE,
        "x": PLACE,
        "y": PLACE,
    },
    outputs=("IMAGE",),
    category="image/transform",
    display_name="Image Crop",
    estimate=_crop_estimate,
)
def image_crop(
    context: Context, *, image: Images, width: int, height: int, x: int, y: int
) -> tuple[Images]:
    """Cuts a rectangle out of images; one that would lie outside is moved to the last pixel."""
    x, y = min(x, image.shape[2] - 1), min(y, image.shape[1] - 1)
    return (image[:, y : y + height, x : x + width],)


@node(
    "ImageFlip",
    inputs={"image": Link("IMAGE"), "flip_method": FLIPS},
    outputs=("IMAGE",),
    category="image/transform",
    estimate=_flip_estimate,
)
def image_flip(context: Context, image: Images, flip_method: str) -> tuple[Images]:
    """Flips images."""
    return (image.flip(1 if flip_method.startswith("x") else 2),)


@node(
    "ImageRotate",
    inputs={"image": Link("IMAGE"), "rotation": ROTATIONS},
    outputs=("IMAGE",),
    category="image/transform",
    estimate=_rotate_estimate,
)
def image_rotate(context: Context, image: Images, rotation: str) -> tuple[Images]:
    """Rotates images by quarter turns."""
    return (image.rot90(quarter_turns(rotation), dims=(2, 1)),)


@node(
    "ImageFromBatch",
    inputs={
        "image": Link("IMAGE"),
        "batch_index": Int(0, min=0, max=4095, tooltip="The first one to take."),
        "length": Int(1, min=1, max=4096, tooltip="How many."),
    },
    outputs=("IMAGE",),
    category="image/batch",
    estimate=_slice_estimate,
)
def image_from_batch(
    context: Context, image: Images, batch_index: int, length: int
) -> tuple[Images]:
    """Takes some images of a batch."""
    first = min(batch_index, len(image) - 1)
    return (image[first : first + length],)


@node(
    "RepeatImageBatch",
    inputs={"image": Link("IMAGE"), "amount": Int(1, min=1, max=4096, limit="batch")},
    outputs=("IMAGE",),
    category="image/batch",
    estimate=_repeat_estimate,
)
def repeat_image_batch(context: Context, image: Images, amount: int) -> tuple[Images]:
    """Repeats a batch of images."""
    return (context.images.repeated(image, amount),)


@node(
    "GetImageSize",
    inputs={"image": Link("IMAGE")},
    outputs=("INT", "INT", "INT"),
    output_names=("width", "height", "batch_size"),
    category="image",
    display_name="Get Image Size",
    estimate=_size_estimate,
)
def get_image_size(context: Context, image: Images) -> tuple[int, int, int]:
    """Says how large images are, and how many there are."""
    count, height, width, _ = image.shape
    return width, height, count


@node(
    "ImageScaleToTotalPixels",
    inputs={
        "image": Link("IMAGE"),
        "upscale_method": METHODS,
        "megapixels": Float(1.0, min=0.01, max=16.0, tooltip="Of 1024 x 1024 pixels each."),
    },
    optional={
        "resolution_steps": Int(
            1, min=1, max=256, tooltip="The sides become multiples of this, in pixels."
        )
    },
    outputs=("IMAGE",),
    category="image/upscaling",
    estimate=_total_estimate,
)
def image_scale_to_total_pixels(
    context: Context,
    image: Images,
    *,
    upscale_method: str,
    megapixels: float,
    resolution_steps: int = 1,
) -> tuple[Images]:
    """Brings images to a number of pixels, in their proportions."""
    _, height, width, _ = image.shape
    sides = _total_sides(width, height, megapixels, resolution_steps)
    return (context.images.scaled(image, *sides, method=upscale_method, crop="disabled"),)
