"""Nodes that make, load, save, resize, combine and filter images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import (
    BatchShape,
    Estimate,
    ImageShape,
    LatentShape,
    MaskShape,
    Scalar,
    default_estimate,
    saturated,
)
from engine.graph.declarations import (
    Boolean,
    Choice,
    DynamicChoice,
    Float,
    Input,
    InputFile,
    Int,
    Link,
    String,
    node,
)
from engine.graph.models_folder import UPSCALE_MODELS
from engine.nodes.sides import CELL, CELL_POSITION, CROP, MAX_SIDE, POSITION, side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask
    from engine.diffusion.images.upscale_models import UpscaleNetwork
    from engine.reports import SavedLatent


METHODS = Choice(("nearest-exact", "bilinear", "area", "bicubic", "lanczos"))
_FLOAT_BYTES = 4
"""The number of bytes of one channel of a pixel in memory. In a file, a channel is one byte."""
_EMPTY_SIDE = Int(512, min=1, max=MAX_SIDE, limit="longest_side")
_PREFIX_TOOLTIP = "In ComfyUI's API, the names of the images begin with this text."
_IN_PROPORTION = "The length in pixels. 0 keeps the proportions."


def changed_images(before: ImageShape, after: ImageShape, factor: float) -> Estimate:
    """Return the estimate for images that are made from other images.

    `factor` is the work for a megapixel of the larger images.
    """
    largest = max(before.megapixels, after.megapixels)
    return Estimate((after,), work=largest * factor, scratch_bytes=after.size_bytes)


def _saved_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["images"]
    # The node rounds to whole levels in float32, which needs two copies.
    return Estimate(
        work=images.megapixels * work.FILE,
        scratch_bytes=2 * images.size_bytes,
        results=images.count,
        result_bytes=images.size_bytes // _FLOAT_BYTES,
    )


def _empty_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images = ImageShape(inputs["batch_size"], inputs["width"], inputs["height"])
    return Estimate((images,), work=images.megapixels * work.COPY)


def _scale_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    scaled = images.sized(inputs["width"], inputs["height"])
    return changed_images(images, scaled, work.RESAMPLE)


def _scale_by_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return changed_images(images, images.scaled(inputs["scale_by"]), work.RESAMPLE)


def _copy_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_images(inputs["image"], inputs["image"], work.COPY)


def _batch_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, second = inputs["image1"], inputs["image2"]
    both = first.counted(first.count + second.count)
    fits = (first.width, first.height) == (second.width, second.height)
    return changed_images(second, both, work.COPY if fits else work.RESAMPLE)


def _pad_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    width = images.width + inputs["left"] + inputs["right"]
    height = images.height + inputs["top"] + inputs["bottom"]
    framed = images.sized(width, height)
    mask = MaskShape(1, framed.width, framed.height)
    return Estimate(
        (framed, mask), work=framed.megapixels * work.COPY, scratch_bytes=4 * mask.size_bytes
    )


@node(
    "SaveImage",
    inputs={
        "images": Link("IMAGE", tooltip="The images to save."),
        "filename_prefix": String("ComfyUI", tooltip=_PREFIX_TOOLTIP),
    },
    category="image",
    display_name="Save Image",
    passed_input="images",
    is_output=True,
    estimate=_saved_estimate,
)
def save_image(context: Context, images: Images, filename_prefix: str) -> list[NDArray[np.uint8]]:
    """Saves the images as results of the job."""
    return context.pixels(images)


@node(
    "PreviewImage",
    inputs={"images": Link("IMAGE")},
    category="image",
    display_name="Preview Image",
    passed_input="images",
    is_output=True,
    estimate=_saved_estimate,
)
def preview_image(context: Context, images: Images) -> list[NDArray[np.uint8]]:
    """Saves the images as results of the job, as Save Image does."""
    return context.pixels(images)


@node(
    "SaveImageAdvanced",
    inputs={
        "images": Link("IMAGE", tooltip="The images to save."),
        "filename_prefix": String("ComfyUI", tooltip=_PREFIX_TOOLTIP),
        "format": DynamicChoice(
            options={
                "png": {
                    "bit_depth": Choice(("8-bit",), default="8-bit"),
                    "input_color_space": Choice(("sRGB",), default="sRGB"),
                }
            },
            tooltip="Only PNG with 8 bits. A request may choose another format for all its images.",
        ),
    },
    category="image",
    display_name="Save Image (Advanced)",
    passed_input="images",
    is_output=True,
    estimate=_saved_estimate,
)
def save_image_advanced(
    context: Context, images: Images, **_options: str
) -> list[NDArray[np.uint8]]:
    """Saves the images as results of the job, as Save Image does."""
    return context.pixels(images)


def _compared_estimate(inputs: Mapping[str, Any]) -> Estimate:
    given = [inputs[name] for name in ("image_a", "image_b") if name in inputs]
    count = max((each.count for each in given), default=0)
    saved = [_saved_estimate({"images": each.counted(count)}) for each in given]
    return Estimate(
        work=sum(each.work for each in saved),
        scratch_bytes=max((each.scratch_bytes for each in saved), default=0),
        results=sum(each.results for each in saved),
        result_bytes=sum(each.result_bytes for each in saved),
    )


@node(
    "ImageCompare",
    inputs={},
    optional={"image_a": Link("IMAGE"), "image_b": Link("IMAGE")},
    category="image",
    display_name="Image Compare",
    is_output=True,
    estimate=_compared_estimate,
)
def image_compare(
    context: Context, image_a: Images | None = None, image_b: Images | None = None
) -> list[NDArray[np.uint8]]:
    """Saves two batches of images as results of the job, first all of one and then all of the
    other. The last image of a smaller batch is repeated.
    """
    given = [context.pixels(each) for each in (image_a, image_b) if each is not None]
    count = max(map(len, given), default=0)
    return [each[min(at, len(each) - 1)] for each in given for at in range(count)]


@node(
    "SaveImageWebsocket",
    inputs={"images": Link("IMAGE")},
    category="api/image",
    is_output=True,
    estimate=_saved_estimate,
)
def save_image_websocket(context: Context, images: Images) -> list[NDArray[np.uint8]]:
    """Saves the images as results of the job, and sends them to the clients of ComfyUI's
    websocket.
    """
    return context.pixels(images)


@node(
    "EmptyImage",
    inputs={
        "width": _EMPTY_SIDE,
        "height": _EMPTY_SIDE,
        "batch_size": Int(1, min=1, max=4096, limit="batch"),
        "color": Int(0, min=0, max=0xFFFFFF, tooltip="Red, green and blue as 0xRRGGBB."),
    },
    outputs=("IMAGE",),
    category="image",
    pixel_inputs=("width", "height", "batch_size"),
    estimate=_empty_estimate,
)
def empty_image(
    context: Context, width: int, height: int, *, batch_size: int, color: int
) -> tuple[Images]:
    """Makes images of one colour."""
    return (context.images.empty(width, height, batch_size, colour=color),)


@node(
    "ImageScale",
    inputs={
        "image": Link("IMAGE"),
        "upscale_method": METHODS,
        "width": side(512, step=1, tooltip=_IN_PROPORTION),
        "height": side(512, step=1, tooltip=_IN_PROPORTION),
        "crop": CROP,
    },
    outputs=("IMAGE",),
    category="image/upscaling",
    display_name="Upscale Image",
    pixel_inputs=("width", "height"),
    estimate=_scale_estimate,
)
def image_scale(
    context: Context, image: Images, *, upscale_method: str, width: int, height: int, crop: str
) -> tuple[Images]:
    """Resizes images to a width and a height."""
    return (context.images.scaled(image, width, height, method=upscale_method, crop=crop),)


@node(
    "ImageScaleBy",
    inputs={
        "image": Link("IMAGE"),
        "upscale_method": METHODS,
        "scale_by": Float(1.0, min=0.01, max=8.0),
    },
    outputs=("IMAGE",),
    category="image/upscaling",
    display_name="Upscale Image By",
    estimate=_scale_by_estimate,
)
def image_scale_by(
    context: Context, image: Images, upscale_method: str, scale_by: float
) -> tuple[Images]:
    """Resizes images by a factor."""
    return (context.images.scaled_by(image, scale_by, method=upscale_method),)


@node(
    "ImageInvert",
    inputs={"image": Link("IMAGE")},
    outputs=("IMAGE",),
    category="image",
    display_name="Invert Image",
    estimate=_copy_estimate,
)
def image_invert(context: Context, image: Images) -> tuple[Images]:
    """Inverts the colours of images."""
    from engine.diffusion.images.latents import COLOURS

    inverted = 1.0 - image
    inverted[..., COLOURS:] = image[..., COLOURS:]
    return (inverted,)


@node(
    "ImageBatch",
    inputs={"image1": Link("IMAGE"), "image2": Link("IMAGE")},
    outputs=("IMAGE",),
    category="image",
    display_name="Batch Images",
    estimate=_batch_estimate,
)
def image_batch(context: Context, image1: Images, image2: Images) -> tuple[Images]:
    """Joins two batches. The second batch is resized to the size of the first."""
    return (context.images.joined(image1, image2),)


_MOST_BATCHES = 50


def _batches_estimate(inputs: Mapping[str, Any]) -> Estimate:
    batches: list[ImageShape] = list(inputs.values())
    joined = batches[0].counted(sum(each.count for each in batches))
    largest = max(batches, key=lambda each: each.megapixels)
    # Each batch is added to the ones before it.
    return replace(changed_images(largest, joined, work.RESAMPLE), scratch_bytes=joined.size_bytes)


@node(
    "BatchImagesNode",
    inputs={"images.image0": Link("IMAGE")},
    optional={f"images.image{number}": Link("IMAGE") for number in range(1, _MOST_BATCHES)},
    outputs=("IMAGE",),
    category="image",
    display_name="Batch Images",
    estimate=_batches_estimate,
)
def batch_images(context: Context, **images: Images) -> tuple[Images]:
    """Joins batches. All images are resized to the size of the first."""
    numbered = {int(name.removeprefix("images.image")): each for name, each in images.items()}
    joined, *others = (numbered[number] for number in sorted(numbered))
    for each in others:
        joined = context.images.joined(joined, each)
    return (joined,)


@node(
    "ImagePadForOutpaint",
    inputs={
        "image": Link("IMAGE"),
        "left": side(0),
        "top": side(0),
        "right": side(0),
        "bottom": side(0),
        "feathering": Int(
            40,
            min=0,
            max=MAX_SIDE,
            tooltip="The width in pixels of the soft edge of the mask inside the image.",
        ),
    },
    outputs=("IMAGE", "MASK"),
    category="image",
    display_name="Pad Image for Outpainting",
    estimate=_pad_estimate,
)
def image_pad_for_outpaint(
    context: Context,
    image: Images,
    *,
    left: int,
    top: int,
    right: int,
    bottom: int,
    feathering: int,
) -> tuple[Images, Mask]:
    """Adds a grey frame around images, and makes a mask of the frame for a sampler to fill."""
    return context.images.padded(
        image, left=left, top=top, right=right, bottom=bottom, feathering=feathering
    )


FLIPS = Choice(("x-axis: vertically", "y-axis: horizontally"))
ROTATIONS = Choice(
    ("none", "90 degrees", "180 degrees", "270 degrees"),
    tooltip="The angle of the rotation, clockwise.",
)
_SIDE = Int(512, min=1, max=MAX_SIDE, tooltip="The length in pixels.")
_MEGAPIXEL = 1024 * 1024


def quarter_turns(rotation: str) -> int:
    return ROTATIONS.values.index(rotation)


def _crop_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    sides = min(images.width, inputs["width"]), min(images.height, inputs["height"])
    # The result is a view of the images, so the whole images stay in memory.
    return Estimate((replace(images.sized(*sides), held_bytes=images.size_bytes),))


def _rotate_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    turned = images.sized(images.height, images.width)
    return changed_images(
        images, turned if quarter_turns(inputs["rotation"]) % 2 else images, work.COPY
    )


def _slice_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    part = images.counted(min(images.count, inputs["length"]))
    return Estimate((replace(part, held_bytes=images.size_bytes),))


def _repeat_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    repeated = images.counted(saturated(images.count * inputs["amount"]))
    return changed_images(images, repeated, work.COPY)


def _size_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return Estimate((Scalar(images.width), Scalar(images.height), Scalar(images.count)))


def _total_sides(width: int, height: int, megapixels: float, multiple: int) -> tuple[int, int]:
    """Return sides with `megapixels` in the same proportions, as multiples of `multiple`."""
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
        "x": POSITION,
        "y": POSITION,
    },
    outputs=("IMAGE",),
    category="image/transform",
    display_name="Image Crop",
    estimate=_crop_estimate,
)
def image_crop(
    context: Context, *, image: Images, width: int, height: int, x: int, y: int
) -> tuple[Images]:
    """Cuts a rectangle out of images.

    A position outside the image is moved to its last pixel.
    """
    x, y = min(x, image.shape[2] - 1), min(y, image.shape[1] - 1)
    return (image[:, y : y + height, x : x + width],)


@node(
    "ImageFlip",
    inputs={"image": Link("IMAGE"), "flip_method": FLIPS},
    outputs=("IMAGE",),
    category="image/transform",
    estimate=_copy_estimate,
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
        "batch_index": Int(0, min=0, max=4095, tooltip="The index of the first one to take."),
        "length": Int(1, min=1, max=4096, tooltip="The number to take."),
    },
    outputs=("IMAGE",),
    category="image/batch",
    estimate=_slice_estimate,
)
def image_from_batch(
    context: Context, image: Images, batch_index: int, length: int
) -> tuple[Images]:
    """Takes a range of a batch of images."""
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
    """Returns the size of images and their number."""
    count, height, width, _ = image.shape
    return width, height, count


@node(
    "ImageScaleToTotalPixels",
    inputs={
        "image": Link("IMAGE"),
        "upscale_method": METHODS,
        "megapixels": Float(
            1.0, min=0.01, max=16.0, tooltip="The number of pixels, in units of 1024 x 1024 pixels."
        ),
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
    """Resizes images to a number of pixels and keeps their proportions."""
    _, height, width, _ = image.shape
    sides = _total_sides(width, height, megapixels, resolution_steps)
    return (context.images.scaled(image, *sides, method=upscale_method, crop="disabled"),)


# ComfyUI lists bilinear twice.
_TO_LONGEST = ("area", "lanczos", "bilinear", "nearest-exact", "bilinear", "bicubic")


def _longest_sides(width: int, height: int, longest: int) -> tuple[int, int]:
    """Return sides in the same proportions, of which the longer one is `longest`."""
    if height > width:
        return max(1, round(width / height * longest)), longest
    return longest, longest if width == height else max(1, round(height / width * longest))


def _require_longest(inputs: Mapping[str, Any]) -> None:
    if inputs["largest_size"] == 0:
        raise ValueError("largest_size must be above 0")


def _longest_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    sides = _longest_sides(images.width, images.height, inputs["largest_size"])
    return changed_images(images, images.sized(*sides), work.RESAMPLE)


@node(
    "ImageScaleToMaxDimension",
    inputs={
        "image": Link("IMAGE"),
        "upscale_method": Choice(_TO_LONGEST),
        "largest_size": side(512, step=1, tooltip="The length of the longer side in pixels."),
    },
    outputs=("IMAGE",),
    category="image/upscaling",
    check=_require_longest,
    estimate=_longest_estimate,
)
def image_scale_to_max_dimension(
    context: Context, image: Images, upscale_method: str, largest_size: int
) -> tuple[Images]:
    """Resizes images to a length of their longer side and keeps their proportions."""
    _, height, width, _ = image.shape
    sides = _longest_sides(width, height, largest_size)
    return (context.images.scaled(image, *sides, method=upscale_method, crop="disabled"),)


_LENGTH = side(512, step=1, tooltip="The length in pixels.")
_LENGTH_OR_KEPT = side(512, step=1, tooltip=_IN_PROPORTION)
_FITTED = replace(CROP, default="center")
_MULTIPLE = Int(8, min=1, max=MAX_SIDE, limit="longest_side", tooltip="The sides become multiples.")
_RESIZE_TYPES: dict[str, dict[str, Input]] = {
    "scale dimensions": {"width": _LENGTH_OR_KEPT, "height": _LENGTH_OR_KEPT, "crop": _FITTED},
    "scale by multiplier": {"multiplier": Float(1.0, min=0.01, max=8.0)},
    "scale longer dimension": {"longer_size": _LENGTH},
    "scale shorter dimension": {"shorter_size": _LENGTH},
    "scale width": {"width": _LENGTH},
    "scale height": {"height": _LENGTH},
    "scale total pixels": {
        "megapixels": Float(
            1.0, min=0.01, max=16.0, tooltip="The number of pixels, in units of 1024 x 1024 pixels."
        ),
        "multiple": replace(_MULTIPLE, default=1),
    },
    "match size": {"match": Link("IMAGE,MASK"), "crop": _FITTED},
    "scale to multiple": {"multiple": _MULTIPLE},
}


def _resized_sides(
    width: int, height: int, *, resize_type: str, parts: Mapping[str, Any], target: tuple[int, int]
) -> tuple[int, int]:
    """Return the width and height to which images are resized. `target` is for `match size`."""
    match resize_type:
        case "scale by multiplier":
            factor = parts["multiplier"]
            return max(1, round(width * factor)), max(1, round(height * factor))
        case "scale longer dimension":
            return _longest_sides(width, height, parts["longer_size"])
        case "scale shorter dimension":
            shorter = parts["shorter_size"]
            if width < height:
                return shorter, round(height / width * shorter)
            return round(width / height * shorter), shorter
        case "scale total pixels":
            multiple, total = parts["multiple"], int(parts["megapixels"] * _MEGAPIXEL)
            factor = math.sqrt(total / (width * height))
            sides = (max(1, round(each * factor / multiple)) * multiple for each in (width, height))
            new_width, new_height = sides
            return new_width, new_height
        case "match size":
            return target
        case "scale to multiple":
            return _covering_sides(width, height, *_cut_sides(width, height, parts["multiple"]))
        case _:  # A side of 0 keeps the proportions.
            return parts.get("width", 0), parts.get("height", 0)


def _cut_sides(width: int, height: int, multiple: int) -> tuple[int, int]:
    """Return the sides, rounded down to multiples, or unchanged if one of them would be 0."""
    cut = width // multiple * multiple, height // multiple * multiple
    return cut if all(cut) else (width, height)


def _covering_sides(width: int, height: int, *least: int) -> tuple[int, int]:
    """Return the smallest sides in nearly the same proportions that reach both `least` sides."""
    shares = least[0] / width, least[1] / height
    if shares[0] >= shares[1]:
        return least[0], max(least[1], math.ceil(height * shares[0]))
    return max(least[0], math.ceil(width * shares[1])), least[1]


def _parts(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.removeprefix("resize_type."): value
        for name, value in inputs.items()
        if name.startswith("resize_type.")
    }


def _require_sides(inputs: Mapping[str, Any]) -> None:
    for name in ("longer_size", "shorter_size"):
        if _parts(inputs).get(name) == 0:
            raise ValueError(f"resize_type.{name} must be above 0")


def _resize_estimate(inputs: Mapping[str, Any]) -> Estimate:
    given: BatchShape = inputs["input"]
    parts = _parts(inputs)
    to: BatchShape = parts.get("match", given)
    sides = _resized_sides(
        max(1, given.width),
        max(1, given.height),
        resize_type=inputs["resize_type"],
        parts=parts,
        target=(to.width, to.height),
    )
    resized = given.sized(*sides)
    largest = max(given.megapixels, resized.megapixels)
    return Estimate((resized,), work=largest * work.RESAMPLE, scratch_bytes=2 * resized.size_bytes)


@node(
    "ResizeImageMaskNode",
    inputs={
        "input": Link("IMAGE,MASK"),
        "resize_type": DynamicChoice(options=_RESIZE_TYPES),
        "scale_method": replace(METHODS, default="area"),
    },
    outputs=("IMAGE,MASK",),
    output_names=("resized",),
    type_follows="input",
    category="transform",
    display_name="Resize Image/Mask",
    check=_require_sides,
    estimate=_resize_estimate,
)
def resize_image_mask(
    context: Context,
    input: Images | Mask,  # noqa: A002 - the name of the input
    *,
    resize_type: str,
    scale_method: str,
    **inputs: Any,
) -> tuple[Images | Mask]:
    """Resizes images or masks to a size that is computed in one of several ways.

    "Scale to multiple" also cuts off what is left over at the sides.
    """
    parts = _parts(inputs)
    is_mask = input.ndim == 3
    images = input[..., None] if is_mask else input
    _, height, width, _ = images.shape
    to = parts.get("match", images).shape[1:3]
    sides = _resized_sides(
        width, height, resize_type=resize_type, parts=parts, target=(to[1], to[0])
    )
    crop = parts.get("crop", "disabled")
    least: tuple[int, int] | None = None
    if resize_type == "scale to multiple":
        least = _cut_sides(width, height, parts["multiple"])
        if least == (width, height):
            return (input,)
    images = context.images.scaled(images, *sides, method=scale_method, crop=crop)
    if least is not None:
        x, y = (sides[0] - least[0]) // 2, (sides[1] - least[1]) // 2
        images = images[:, y : y + least[1], x : x + least[0]]
    return (images[..., 0] if is_mask else images,)


def _fitting_sides(width: int, height: int, *target: int) -> tuple[int, int]:
    """Return the largest sides in the same proportions that fit into the target's width and height,
    rounded down.
    """
    factors = target[0] / width, target[1] / height
    if factors[0] == factors[1]:
        return target[0], target[1]
    return max(1, int(width * min(factors))), max(1, int(height * min(factors)))


def _fitted_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    framed = images.sized(inputs["target_width"], inputs["target_height"])
    return replace(changed_images(images, framed, work.RESAMPLE), scratch_bytes=framed.size_bytes)


@node(
    "ResizeAndPadImage",
    inputs={
        "image": Link("IMAGE"),
        "target_width": _EMPTY_SIDE,
        "target_height": _EMPTY_SIDE,
        "padding_color": Choice(("white", "black")),
        "interpolation": Choice(("area", "bicubic", "nearest-exact", "bilinear", "lanczos")),
    },
    outputs=("IMAGE",),
    category="image/transform",
    display_name="Resize And Pad Image",
    pixel_inputs=("target_width", "target_height"),
    estimate=_fitted_estimate,
)
def resize_and_pad_image(
    context: Context,
    *,
    image: Images,
    target_width: int,
    target_height: int,
    padding_color: str,
    interpolation: str,
) -> tuple[Images]:
    """Resizes images so that they fit into a size, and fills the rest with white or black."""
    target = target_width, target_height
    count, height, width, channels = image.shape
    context.images.limits.require_batch(count, width=target_width, height=target_height)
    sides = _fitting_sides(width, height, *target)
    fitted = context.images.scaled(image, *sides, method=interpolation, crop="disabled")
    level = 1.0 if padding_color == "white" else 0.0
    framed = image.new_full((count, target_height, target_width, channels), level)
    x, y = ((whole - part) // 2 for whole, part in zip(target, sides, strict=True))
    framed[:, y : y + sides[1], x : x + sides[0]] = fitted
    return (framed,)


_DIRECTIONS = ("right", "down", "left", "up")
_COLOURS = {
    "white": (1.0, 1.0, 1.0),
    "black": (0.0, 0.0, 0.0),
    "red": (1.0, 0.0, 0.0),
    "green": (0.0, 1.0, 0.0),
    "blue": (0.0, 0.0, 1.0),
}


def _stitched_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first: ImageShape = inputs["image1"]
    if "image2" not in inputs:
        return Estimate((first,))
    second: ImageShape = inputs["image2"]
    along = inputs["direction"] in ("left", "right")
    if inputs["match_image_size"]:
        to = (0, first.height) if along else (first.width, 0)
        second = second.sized(*to)
    spacing = inputs["spacing_width"] + 1
    width, height = max(first.width, second.width), max(first.height, second.height)
    if along:
        width = first.width + spacing + second.width
    else:
        height = first.height + spacing + second.height
    stitched = ImageShape(max(first.count, second.count), saturated(width), saturated(height))
    factor = work.RESAMPLE if inputs["match_image_size"] else work.COPY
    return changed_images(second, stitched, factor)


@node(
    "ImageStitch",
    inputs={
        "image1": Link("IMAGE"),
        "direction": Choice(
            _DIRECTIONS, default="right", tooltip="The side on which the second image is added."
        ),
        "match_image_size": Boolean(
            True, tooltip="Resize the second image so that the joined sides are equally long."
        ),
        "spacing_width": Int(
            0, min=0, max=1024, step=2, tooltip="The width in pixels of a stripe between both."
        ),
        "spacing_color": Choice(tuple(_COLOURS), default="white"),
    },
    optional={"image2": Link("IMAGE")},
    outputs=("IMAGE",),
    category="image/transform",
    display_name="Image Stitch",
    estimate=_stitched_estimate,
)
def image_stitch(
    context: Context,
    *,
    image1: Images,
    direction: str,
    match_image_size: bool,
    spacing_width: int,
    spacing_color: str,
    image2: Images | None = None,
) -> tuple[Images]:
    """Joins two images side by side or one above the other. Of a smaller batch, the last image is
    repeated.
    """
    if image2 is None:
        return (image1,)
    return (
        context.images.stitched(
            image1,
            image2,
            direction=direction,
            resized=match_image_size,
            spacing=spacing_width + spacing_width % 2,
            colour=_COLOURS[spacing_color],
        ),
    )


_RESIZE = Boolean(False, tooltip="Resize the source to the destination's size.")
_MASK = Link("MASK", tooltip="The weight of the source. The mask is resized to the source's size.")
_MODES = ("normal", "multiply", "screen", "overlay", "soft_light", "difference")
_COPIES = 6
"""The number of copies: both images in one size, the mask, and temporary values of a blend mode."""


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


def _composite_inputs(kind: str, place: Int) -> dict[str, Input]:
    return {
        "destination": Link(kind),
        "source": Link(kind),
        "x": place,
        "y": place,
        "resize_source": _RESIZE,
    }


def _blend_estimate(inputs: Mapping[str, Any]) -> Estimate:
    first, second = inputs["image1"], inputs["image2"]
    both = first.counted(max(first.count, second.count))
    return _over_estimate(both, second, work.RESAMPLE)


@node(
    "ImageCompositeMasked",
    inputs=_composite_inputs("IMAGE", POSITION),
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
    """Pastes images over others, weighted by a mask."""
    from engine.diffusion.images.compositing import pasted
    from engine.diffusion.images.latents import with_channels

    source = with_channels(source, destination.shape[-1])
    below, above = destination.movedim(-1, 1), source.movedim(-1, 1)
    found = pasted(below, above, x=x, y=y, mask=mask, resized=resize_source)
    return (found.movedim(1, -1),)


@node(
    "LatentCompositeMasked",
    inputs=_composite_inputs("LATENT", CELL_POSITION),
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
    """Pastes latents over others, weighted by a mask."""
    from engine.diffusion.images.compositing import pasted

    place = {"x": x // CELL, "y": y // CELL}
    below, above = destination.samples, source.samples
    found = pasted(below, above, **place, mask=mask, resized=resize_source)
    return (replace(destination, samples=found),)


@node(
    "ImageBlend",
    inputs={
        "image1": Link("IMAGE"),
        "image2": Link(
            "IMAGE", tooltip="The second image, which is resized to the size of the first."
        ),
        "blend_factor": Float(0.5, min=0.0, max=1.0, tooltip="The weight of the blend."),
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


_FILTER_COPIES = 4
_DITHERS = ("none", "floyd-steinberg", "bayer-2", "bayer-4", "bayer-8", "bayer-16")


def _threshold(default: float, tooltip: str) -> Float:
    return Float(default, min=0.01, max=0.99, tooltip=tooltip)


def _filtered(images: ImageShape, factor: float) -> Estimate:
    return Estimate(
        (images,), work=images.megapixels * factor, scratch_bytes=_FILTER_COPIES * images.size_bytes
    )


def _filter_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _filtered(inputs["image"], work.FILE)


def _kernel_estimate(inputs: Mapping[str, Any], *, radius: str) -> Estimate:
    """Return the estimate of a separable filter: one pass along the rows, one along the columns.

    `radius` is the name of the input with the radius of the filter.
    """
    return _filtered(inputs["image"], work.COPY * 2 * (2 * inputs[radius] + 1))


@node(
    "ImageBlur",
    inputs={
        "image": Link("IMAGE"),
        "blur_radius": Int(1, min=1, max=31, tooltip="The length in pixels."),
        "sigma": Float(
            1.0,
            min=0.1,
            max=10.0,
            step=0.1,
            tooltip="The standard deviation as a multiple of the radius.",
        ),
    },
    outputs=("IMAGE",),
    category="image/postprocessing",
    estimate=partial(_kernel_estimate, radius="blur_radius"),
)
def image_blur(
    context: Context, image: Images, blur_radius: int, sigma: float
) -> Work[tuple[Images]]:
    """Blurs images."""
    from engine.diffusion.images import filters

    return ((yield from filters.blurred(image, blur_radius, sigma)),)


@node(
    "ImageSharpen",
    inputs={
        "image": Link("IMAGE"),
        "sharpen_radius": Int(1, min=1, max=31, tooltip="The length in pixels."),
        "sigma": Float(
            1.0, min=0.1, max=10.0, tooltip="The standard deviation as a multiple of the radius."
        ),
        "alpha": Float(1.0, min=0.0, max=5.0, tooltip="The strength of the sharpening."),
    },
    outputs=("IMAGE",),
    category="image/postprocessing",
    estimate=partial(_kernel_estimate, radius="sharpen_radius"),
)
def image_sharpen(
    context: Context, image: Images, *, sharpen_radius: int, sigma: float, alpha: float
) -> Work[tuple[Images]]:
    """Sharpens images."""
    from engine.diffusion.images import filters

    return ((yield from filters.sharpened(image, sharpen_radius, sigma, strength=alpha)),)


@node(
    "ImageQuantize",
    inputs={
        "image": Link("IMAGE"),
        "colors": Int(256, min=1, max=256, tooltip="The largest number of colours."),
        "dither": Choice(_DITHERS, tooltip="How the rounding error of each pixel is distributed."),
    },
    outputs=("IMAGE",),
    category="image/postprocessing",
    estimate=_filter_estimate,
)
def image_quantize(
    context: Context, image: Images, colors: int, dither: str
) -> Work[tuple[Images]]:
    """Reduces images to a few colours."""
    from engine.diffusion.images import filters

    return ((yield from filters.quantized(image, colors, dither=dither)),)


@node(
    "Canny",
    inputs={
        "image": Link("IMAGE"),
        "low_threshold": _threshold(0.4, "The least gradient of a pixel that continues an edge."),
        "high_threshold": _threshold(0.8, "The least gradient of an edge."),
    },
    outputs=("IMAGE",),
    category="image/preprocessors",
    estimate=_filter_estimate,
)
def canny(
    context: Context, image: Images, low_threshold: float, high_threshold: float
) -> Work[tuple[Images]]:
    """Finds the edges of images and draws them in white on black."""
    from engine.diffusion.images.filters import canny_edges

    edges = yield from canny_edges(image, low=low_threshold, high=high_threshold)
    return (edges[..., None].repeat(1, 1, 1, 3),)


def _load_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return replace(default_estimate(("UPSCALE_MODEL",)), work=work.LOAD_PART)


def _upscale_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    larger = images.scaled(inputs["upscale_model"])
    # The sum of the tiles and the sum of their weights are in memory at the same time.
    return Estimate(
        (larger,), work=images.megapixels * work.UPSCALE, scratch_bytes=2 * larger.size_bytes
    )


@node(
    "UpscaleModelLoader",
    inputs={"model_name": Choice(folder=UPSCALE_MODELS)},
    outputs=("UPSCALE_MODEL",),
    category="loaders",
    display_name="Load Upscale Model",
    estimate=_load_estimate,
)
def upscale_model_loader(context: Context, model_name: str) -> Work[tuple[UpscaleNetwork]]:
    """Loads a model that enlarges images (ESRGAN or Real-ESRGAN, safetensors)."""
    network = yield from context.upscale_model(model_name)
    return (network,)


@node(
    "ImageUpscaleWithModel",
    inputs={"upscale_model": Link("UPSCALE_MODEL"), "image": Link("IMAGE")},
    outputs=("IMAGE",),
    category="image/upscaling",
    display_name="Upscale Image (using Model)",
    estimate=_upscale_estimate,
)
def image_upscale_with_model(
    context: Context, upscale_model: UpscaleNetwork, image: Images
) -> Work[tuple[Images]]:
    """Enlarges images by the factor that the model was trained for."""
    images = yield from context.upscaled(upscale_model, image)
    return (images,)


def _load_image_estimate(inputs: Mapping[str, Any]) -> Estimate:
    image: ImageShape = inputs["image"]
    mask = MaskShape(image.count, image.width, image.height)
    return Estimate(
        (image, mask), work=image.megapixels * work.FILE, scratch_bytes=image.size_bytes
    )


def _load_mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    image: ImageShape = inputs["image"]
    mask = MaskShape(1, image.width, image.height)
    return Estimate((mask,), work=mask.megapixels * work.FILE, scratch_bytes=2 * mask.size_bytes)


def _load_latent_estimate(inputs: Mapping[str, Any]) -> Estimate:
    image: ImageShape = inputs["latent"]
    latent = LatentShape(image.count, image.width, image.height)
    return Estimate((latent,), scratch_bytes=latent.size_bytes)


def _save_latent_estimate(inputs: Mapping[str, Any]) -> Estimate:
    size_bytes = inputs["samples"].size_bytes
    return Estimate(scratch_bytes=size_bytes, results=1, result_bytes=size_bytes)


@node(
    "LoadImage",
    inputs={"image": InputFile(tooltip="An uploaded image.")},
    outputs=("IMAGE", "MASK"),
    category="image",
    display_name="Load Image",
    estimate=_load_image_estimate,
)
def load_image(context: Context, image: str) -> tuple[Images, Mask]:
    """Loads an image, and its transparent part as a mask. All frames of an animation are loaded."""
    return context.image_file(image)


@node(
    "LoadImageOutput",
    inputs={"image": InputFile(tooltip="An image of an earlier job: its name and ` [output]`.")},
    outputs=load_image.outputs,
    category="image",
    display_name="Load Image (from Outputs)",
    estimate=_load_image_estimate,
)
def load_image_output(context: Context, image: str) -> tuple[Images, Mask]:
    """Loads an image of an earlier job, like LoadImage."""
    found: tuple[Images, Mask] = load_image.body(context, image)
    return found


@node(
    "LoadImageMask",
    inputs={
        "image": InputFile(tooltip="An uploaded image."),
        "channel": Choice(("alpha", "red", "green", "blue")),
    },
    outputs=("MASK",),
    category="mask",
    display_name="Load Image (as Mask)",
    estimate=_load_mask_estimate,
)
def load_image_mask(context: Context, image: str, channel: str) -> tuple[Mask]:
    """Loads one channel of an image as a mask. With alpha, the mask covers the transparent part."""
    return (context.mask_file(image, channel),)


@node(
    "SaveLatent",
    inputs={
        "samples": Link("LATENT"),
        "filename_prefix": String(
            "latents/ComfyUI", tooltip="Accepted and not used: files are named by their job."
        ),
    },
    category="_for_testing",
    is_output=True,
    estimate=_save_latent_estimate,
)
def save_latent(context: Context, samples: Latent, filename_prefix: str) -> list[SavedLatent]:
    """Saves a batch of latents as a result of the job, in one file."""
    return [context.saved(samples)]


@node(
    "LoadLatent",
    inputs={"latent": InputFile(kind="latent", tooltip="An uploaded latent.")},
    outputs=("LATENT",),
    category="_for_testing",
    estimate=_load_latent_estimate,
)
def load_latent(context: Context, latent: str) -> tuple[Latent]:
    """Loads a latent that was saved before."""
    return (context.latent_file(latent),)


_SENT = InputFile(is_text=True, tooltip="An image in base64, or the name of an uploaded image.")


def _as_mask(inputs: Mapping[str, Any]) -> Estimate:
    return load_image_mask.estimated({"image": inputs["mask"]})


@node(
    "ETN_LoadImageBase64",
    inputs={"image": _SENT},
    outputs=("IMAGE", "MASK"),
    category="external_tooling",
    display_name="Load Image (Base64)",
    estimate=load_image.estimate,
)
def load_image_base64(context: Context, image: str) -> tuple[Images, Mask]:
    """Loads an image that the graph contains, and its transparent part as a mask."""
    return context.image_file(image)


@node(
    "ETN_LoadMaskBase64",
    inputs={"mask": _SENT},
    outputs=("MASK",),
    category="external_tooling",
    display_name="Load Mask (Base64)",
    estimate=_as_mask,
)
def load_mask_base64(context: Context, mask: str) -> tuple[Mask]:
    """Loads the red channel of an image that the graph contains, as a mask."""
    return (context.mask_file(mask, "red"),)


@node(
    "ETN_SendImageWebSocket",
    inputs={
        "images": Link("IMAGE"),
        "format": Choice(
            ("PNG", "JPEG"),
            tooltip="Accepted and not used: the format of the job's images is used.",
        ),
    },
    category="external_tooling",
    display_name="Send Image (WebSocket)",
    is_output=True,
    estimate=save_image_websocket.estimate,
)
def send_image_websocket(
    context: Context,
    images: Images,
    format: str,  # noqa: A002 - the name of the input
) -> list[NDArray[np.uint8]]:
    """Saves the images as results of the job, and sends them to the clients of ComfyUI's
    websocket.
    """
    return context.pixels(images)
