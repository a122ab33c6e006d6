"""Nodes that make, combine and change masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import (
    Estimate,
    ImageShape,
    LatentShape,
    MaskShape,
    TransparentImageShape,
    saturated,
)
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, node
from engine.nodes.images import save_image
from engine.nodes.latents import encode_estimate
from engine.nodes.sides import MAX_SIDE, POSITION

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask
    from engine.diffusion.images.vae import Vae


def _to_image_estimate(inputs: Mapping[str, Any]) -> Estimate:
    mask: MaskShape = inputs["mask"]
    return Estimate((ImageShape(mask.count, mask.width, mask.height),))


def _to_mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    image: ImageShape = inputs["image"]
    # The mask is a view of the images, so the images stay in memory.
    return Estimate((MaskShape(image.count, image.width, image.height, image.size_bytes),))


def _noise_mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    mask: MaskShape = inputs["mask"]
    return Estimate((replace(latent, held_bytes=saturated(mask.size_bytes)),))


@node(
    "MaskToImage",
    inputs={"mask": Link("MASK")},
    outputs=("IMAGE",),
    category="mask",
    display_name="Convert Mask to Image",
    estimate=_to_image_estimate,
)
def mask_to_image(context: Context, mask: Mask) -> tuple[Images]:
    """Converts a mask to grey images."""
    return (context.images.from_mask(mask),)


def _preview_estimate(inputs: Mapping[str, Any]) -> Estimate:
    mask: MaskShape = inputs["mask"]
    images = ImageShape(mask.count, mask.width, mask.height)
    return save_image.estimated({"images": images})


@node(
    "MaskPreview",
    inputs={"mask": Link("MASK")},
    category="mask",
    display_name="Preview Mask",
    passed_input="mask",
    is_output=True,
    estimate=_preview_estimate,
)
def mask_preview(context: Context, mask: Mask) -> list[NDArray[np.uint8]]:
    """Saves a mask as grey images, which are results of the job."""
    return context.pixels(context.images.from_mask(mask))


@node(
    "ImageToMask",
    inputs={"image": Link("IMAGE"), "channel": Choice(("red", "green", "blue", "alpha"))},
    outputs=("MASK",),
    category="mask",
    display_name="Convert Image to Mask",
    estimate=_to_mask_estimate,
)
def image_to_mask(context: Context, image: Images, channel: str) -> tuple[Mask]:
    """Makes a mask of one channel of images."""
    return (context.images.to_mask(image, channel),)


@node(
    "SetLatentNoiseMask",
    inputs={"samples": Link("LATENT"), "mask": Link("MASK")},
    outputs=("LATENT",),
    category="latent/inpaint",
    display_name="Set Latent Noise Mask",
    estimate=_noise_mask_estimate,
)
def set_latent_noise_mask(context: Context, samples: Latent, mask: Mask) -> tuple[Latent]:
    """Sets the mask of a latent. A sampler changes only the part that the mask covers."""
    return (replace(samples, noise_mask=mask.reshape(-1, *mask.shape[-2:])),)


@node(
    "VAEEncodeForInpaint",
    inputs={
        "pixels": Link("IMAGE"),
        "vae": Link("VAE"),
        "mask": Link("MASK"),
        "grow_mask_by": Int(
            6,
            min=0,
            max=64,
            tooltip="The number of pixels to grow the mask by, so that no seam is visible.",
        ),
    },
    outputs=("LATENT",),
    category="latent/inpaint",
    display_name="VAE Encode (for Inpainting)",
    estimate=encode_estimate,
)
def vae_encode_for_inpaint(
    context: Context, pixels: Images, vae: Vae, mask: Mask, *, grow_mask_by: int
) -> Work[tuple[Latent]]:
    """Encodes images with the masked part greyed out, for a sampler to fill it."""
    latent = yield from context.encode_for_inpainting(vae, pixels, mask, grow_by=grow_mask_by)
    return (latent,)


def _split_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    mask = MaskShape(images.count, images.width, images.height)
    return Estimate((images, mask), work=images.megapixels * work.COPY)


def _alpha_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    count = max(images.count, inputs["alpha"].count)
    mask = MaskShape(count, images.width, images.height)
    joined = TransparentImageShape(count, images.width, images.height)
    return Estimate(
        (joined,),
        work=joined.megapixels * work.RESAMPLE,
        scratch_bytes=joined.size_bytes + 2 * mask.size_bytes,
    )


@node(
    "SplitImageWithAlpha",
    inputs={"image": Link("IMAGE")},
    outputs=("IMAGE", "MASK"),
    category="mask/compositing",
    display_name="Split Image with Alpha",
    estimate=_split_estimate,
)
def split_image_with_alpha(context: Context, image: Images) -> tuple[Images, Mask]:
    """Splits images into their colours and a mask of their transparent part."""
    from engine.diffusion.images.latents import COLOURS, with_channels

    return image[..., :COLOURS], 1.0 - with_channels(image, COLOURS + 1)[..., COLOURS]


@node(
    "JoinImageWithAlpha",
    inputs={
        "image": Link("IMAGE"),
        "alpha": Link("MASK", tooltip="The part of the images that becomes transparent."),
    },
    outputs=("IMAGE",),
    category="mask/compositing",
    display_name="Join Image with Alpha",
    estimate=_alpha_estimate,
)
def join_image_with_alpha(context: Context, image: Images, alpha: Mask) -> tuple[Images]:
    """Makes images transparent where a mask is. Of a smaller batch, the items are repeated."""
    return (context.images.joined_with_alpha(image, alpha),)


_SIDE = Int(512, min=1, max=MAX_SIDE, limit="longest_side", tooltip="The length in pixels.")
_OPERATIONS = ("multiply", "add", "subtract", "and", "or", "xor")


def _changed(mask: MaskShape, *, times: float = 1.0, copies: int = 2) -> Estimate:
    """Return the estimate for a mask of the same size whose pixels are computed `times` times."""
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
    # The result is a view of the mask, so the whole mask stays in memory.
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
    """Makes a mask with the same value everywhere."""
    return (context.images.solid_mask(width, height, value),)


@node(
    "InvertMask",
    inputs={"mask": Link("MASK")},
    outputs=("MASK",),
    category="mask",
    estimate=_mask_estimate,
)
def invert_mask(context: Context, mask: Mask) -> tuple[Mask]:
    """Inverts a mask."""
    return (1.0 - mask,)


@node(
    "MaskComposite",
    inputs={
        "destination": Link("MASK"),
        "source": Link("MASK"),
        "x": POSITION,
        "y": POSITION,
        "operation": Choice(_OPERATIONS, tooltip="The operation on each pair of values."),
    },
    outputs=("MASK",),
    category="mask",
    estimate=_composite_estimate,
)
def mask_composite(
    context: Context, *, destination: Mask, source: Mask, x: int, y: int, operation: str
) -> tuple[Mask]:
    """Combines one mask with another at a position."""
    from engine.diffusion.images import masks

    return (masks.composed(destination, source, x=x, y=y, operation=operation),)


@node(
    "CropMask",
    inputs={"mask": Link("MASK"), "x": POSITION, "y": POSITION, "width": _SIDE, "height": _SIDE},
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
            0,
            min=-MAX_SIDE,
            max=MAX_SIDE,
            tooltip="The number of pixels to grow by. A negative number shrinks the mask.",
        ),
        "tapered_corners": Boolean(
            True, tooltip="Grow a diamond around each pixel instead of a square."
        ),
    },
    outputs=("MASK",),
    category="mask",
    display_name="Grow Mask",
    estimate=_grow_estimate,
)
def grow_mask(
    context: Context, mask: Mask, expand: int, tapered_corners: bool
) -> Work[tuple[Mask]]:
    """Makes a mask larger or smaller."""
    from engine.diffusion.images import masks

    return ((yield from masks.grown(mask, expand, tapered=tapered_corners)),)


@node(
    "FeatherMask",
    inputs={
        "mask": Link("MASK"),
        "left": POSITION,
        "top": POSITION,
        "right": POSITION,
        "bottom": POSITION,
    },
    outputs=("MASK",),
    category="mask",
    estimate=_mask_estimate,
)
def feather_mask(
    context: Context, *, mask: Mask, left: int, top: int, right: int, bottom: int
) -> tuple[Mask]:
    """Lowers a mask gradually towards its sides."""
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
        "color": Int(0, min=0, max=0xFFFFFF, tooltip="Red, green and blue as 0xRRGGBB."),
    },
    outputs=("MASK",),
    category="mask",
    estimate=_colour_estimate,
)
def image_color_to_mask(context: Context, image: Images, color: int) -> tuple[Mask]:
    """Makes a mask of the pixels that have exactly one colour."""
    from engine.diffusion.images import masks

    return (masks.of_colour(image, color),)
