"""Nodes that make, change and save images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, MaskShape
from engine.graph.declarations import Choice, Float, Int, Link, String, node
from engine.nodes.sides import CROP, MAX_SIDE, side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Mask

METHODS = Choice(("nearest-exact", "bilinear", "area", "bicubic", "lanczos"))
_FLOAT_BYTES = 4
"""Of a value of a pixel, which is one byte in a file."""
_IN_PROPORTION = "In pixels; 0 keeps the proportions."


def changed_images(before: ImageShape, after: ImageShape, factor: float) -> Estimate:
    """Images made from others; `factor` is the work of a megapixel of the larger ones."""
    largest = max(before.megapixels, after.megapixels)
    return Estimate((after,), work=largest * factor, scratch_bytes=after.size_bytes)


def _saved_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["images"]
    # The bodies round to whole levels, in float32 first.
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


def _invert_estimate(inputs: Mapping[str, Any]) -> Estimate:
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
        "filename_prefix": String(
            "ComfyUI", tooltip="Accepted and not used: images are named by their job."
        ),
    },
    category="image",
    display_name="Save Image",
    is_output=True,
    estimate=_saved_estimate,
)
def save_image(context: Context, images: Images, filename_prefix: str) -> list[NDArray[np.uint8]]:
    """Makes the images results of the job."""
    return context.pixels(images)


@node(
    "PreviewImage",
    inputs={"images": Link("IMAGE")},
    category="image",
    display_name="Preview Image",
    is_output=True,
    estimate=_saved_estimate,
)
def preview_image(context: Context, images: Images) -> list[NDArray[np.uint8]]:
    """Makes the images results of the job, as Save Image does."""
    return context.pixels(images)


@node(
    "SaveImageWebsocket",
    inputs={"images": Link("IMAGE")},
    category="api/image",
    is_output=True,
    estimate=_saved_estimate,
)
def save_image_websocket(context: Context, images: Images) -> list[NDArray[np.uint8]]:
    """Makes the images results of the job, as Save Image does: no websocket sends them."""
    return context.pixels(images)


@node(
    "EmptyImage",
    inputs={
        "width": Int(512, min=1, max=MAX_SIDE, limit="longest_side"),
        "height": Int(512, min=1, max=MAX_SIDE, limit="longest_side"),
        "batch_size": Int(1, min=1, max=4096, limit="batch"),
        "color": Int(0, min=0, max=0xFFFFFF, tooltip="Red, green and blue, a byte each."),
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
    """Brings images to a size."""
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
    """Makes images larger or smaller by a factor."""
    return (context.images.scaled_by(image, scale_by, method=upscale_method),)


@node(
    "ImageInvert",
    inputs={"image": Link("IMAGE")},
    outputs=("IMAGE",),
    category="image",
    display_name="Invert Image",
    estimate=_invert_estimate,
)
def image_invert(context: Context, image: Images) -> tuple[Images]:
    """Makes the negative of images."""
    return (1.0 - image,)


@node(
    "ImageBatch",
    inputs={"image1": Link("IMAGE"), "image2": Link("IMAGE")},
    outputs=("IMAGE",),
    category="image",
    display_name="Batch Images",
    estimate=_batch_estimate,
)
def image_batch(context: Context, image1: Images, image2: Images) -> tuple[Images]:
    """Makes one batch of two; the second is brought to the size of the first."""
    return (context.images.joined(image1, image2),)


@node(
    "ImagePadForOutpaint",
    inputs={
        "image": Link("IMAGE"),
        "left": side(0),
        "top": side(0),
        "right": side(0),
        "bottom": side(0),
        "feathering": Int(
            40, min=0, max=MAX_SIDE, tooltip="How far the mask reaches softly into the image."
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
    """Puts a grey frame around images, and a mask over it, for a sampler to fill."""
    return context.images.padded(
        image, left=left, top=top, right=right, bottom=bottom, feathering=feathering
    )
