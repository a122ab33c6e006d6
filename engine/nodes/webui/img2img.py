"""Nodes between an upload and the sampler, and behind it, for the WebUI's img2img."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, LatentShape, MaskShape, saturated
from engine.graph.declarations import Boolean, Choice, Int, Link, node
from engine.nodes.images.image import changed_images
from engine.nodes.latents.latent import changed_latent
from engine.nodes.samplers.sampling import SEED
from engine.nodes.sides import MAX_SIDE, side
from engine.webui.img2img.members import MASKED_CONTENTS, RESIZE_MODES

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask
    from engine.diffusion.model import Model

_SIZE = {"width": side(512), "height": side(512)}
_MODES = Choice(RESIZE_MODES[:3])
_BLUR = Int(0, min=0, max=64, tooltip="The standard deviation in pixels.")
_PADDING = Int(
    0, min=0, max=MAX_SIDE, tooltip="So many pixels around the mask belong to its surroundings."
)
_ONLY_MASKED = Boolean(True, tooltip="The surroundings of the mask alone are made.")
_FILLS = 11
"""A picture is blurred and laid over the one before so often."""
_LATENT_COPIES = 3


def _start_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return changed_images(images, images.sized(inputs["width"], inputs["height"]), work.RESAMPLE)


def _mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    mask = MaskShape(images.count, images.width, images.height)
    return Estimate(
        (mask,), work=images.megapixels * work.RESAMPLE, scratch_bytes=images.size_bytes
    )


def _area_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    sized = images.sized(inputs["width"], inputs["height"])
    found = changed_images(images, sized, 2 * work.RESAMPLE)
    mask = MaskShape(sized.count, sized.width, sized.height)
    return replace(found, shapes=(sized, mask))


def _fill_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_images(inputs["image"], inputs["image"], _FILLS * work.RESAMPLE)


def _latent_mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    mask: MaskShape = inputs["mask"]
    found = changed_latent(latent, replace(latent, held_bytes=saturated(mask.size_bytes)))
    return replace(
        found,
        work=found.work + mask.megapixels * work.RESAMPLE,
        scratch_bytes=saturated(_LATENT_COPIES * latent.size_bytes + mask.size_bytes),
    )


def _paste_estimate(inputs: Mapping[str, Any]) -> Estimate:
    made: ImageShape = inputs["image"]
    original: ImageShape = inputs["original"]
    return changed_images(made, original, 2 * work.RESAMPLE)


@node(
    "WebUIInitImage",
    inputs={
        "image": Link("IMAGE"),
        "transparency": Link("MASK"),
        "width": side(512, tooltip="In pixels; with two of 0 the image keeps its size."),
        "height": side(512),
        "resize_mode": _MODES,
    },
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Init Image",
    pixel_inputs=("width", "height"),
    estimate=_start_estimate,
)
def webui_init_image(
    context: Context,
    image: Images,
    *,
    transparency: Mask,
    width: int,
    height: int,
    resize_mode: Any,
) -> tuple[Images]:
    """Puts images over white where they are transparent, and brings them to a size."""
    from engine.diffusion.images.webui.resizing import flattened, resized

    plain = flattened(image, transparency)
    if not width or not height:
        return (plain,)
    context.images.limits.require_batch(len(plain), width=width, height=height)
    return (resized(plain, width, height, mode=resize_mode),)


@node(
    "WebUIMask",
    inputs={
        "image": Link("IMAGE"),
        "transparency": Link("MASK"),
        "invert": Boolean(False, tooltip="What is black is made anew."),
        "blur_x": _BLUR,
        "blur_y": _BLUR,
    },
    outputs=("MASK",),
    category="darkroom",
    display_name="WebUI Mask",
    estimate=_mask_estimate,
)
def webui_mask(
    context: Context, image: Images, *, transparency: Mask, invert: bool, blur_x: int, blur_y: int
) -> tuple[Mask]:
    """Makes a mask of what is opaque in images, or of what is white where all of it is."""
    from engine.diffusion.images.webui.inpainting import painted_mask

    return (painted_mask(image, transparency, inverts=invert, blur_x=blur_x, blur_y=blur_y),)


@node(
    "WebUIInpaintArea",
    inputs={
        "image": Link("IMAGE"),
        "mask": Link("MASK"),
        **_SIZE,
        "resize_mode": _MODES,
        "only_masked": _ONLY_MASKED,
        "padding": _PADDING,
    },
    outputs=("IMAGE", "MASK"),
    category="darkroom",
    display_name="WebUI Inpaint Area",
    pixel_inputs=("width", "height"),
    estimate=_area_estimate,
)
def webui_inpaint_area(
    context: Context,
    image: Images,
    mask: Mask,
    *,
    width: int,
    height: int,
    resize_mode: Any,
    only_masked: bool,
    padding: int,
) -> tuple[Images, Mask]:
    """Brings images and their mask to a size: all of them, or what is around the mask."""
    from engine.diffusion.images.webui import inpainting
    from engine.diffusion.images.webui.resizing import resized, resized_mask

    width, height = width or image.shape[2], height or image.shape[1]
    context.images.limits.require_batch(len(image), width=width, height=height)
    if not only_masked:
        return (
            resized(image, width, height, mode=resize_mode),
            resized_mask(mask, width, height, mode=resize_mode),
        )
    mask = _mask_of(image, mask)
    region = inpainting.region_of(mask, width, height, padding=padding)
    part = inpainting.cut_out(mask, region) if mask.any() else inpainting.cut_out(mask, region) + 1
    return (
        resized(inpainting.cut_out(image, region), width, height, mode="resize and fill"),
        resized_mask(part, width, height, mode="resize and fill"),
    )


@node(
    "WebUIFill",
    inputs={"image": Link("IMAGE"), "mask": Link("MASK")},
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Fill",
    estimate=_fill_estimate,
)
def webui_fill(context: Context, image: Images, mask: Mask) -> tuple[Images]:
    """Fills images with the colours of the surroundings where the mask is."""
    from engine.diffusion.images.webui.inpainting import filled

    return (filled(image, _mask_of(image, mask)),)


@node(
    "WebUILatentMask",
    inputs={
        "model": Link("MODEL"),
        "samples": Link("LATENT"),
        "mask": Link("MASK"),
        "content": Choice(MASKED_CONTENTS, tooltip="What is under the mask at the start."),
        "seed": SEED,
    },
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Latent Mask",
    estimate=_latent_mask_estimate,
)
def webui_latent_mask(
    context: Context, model: Model, *, samples: Latent, mask: Mask, content: str, seed: int
) -> tuple[Latent]:
    """Has a sampler make a latent anew where the mask is, from noise or nothing if asked for."""
    from engine.diffusion.images.latents import noise_like
    from engine.diffusion.images.webui.inpainting import latent_mask
    from engine.diffusion.inpainting import fitted_mask

    cells, before = latent_mask(mask), samples.samples
    masked = fitted_mask(cells, before)
    if content in ("latent noise", "latent nothing"):
        before = before * (1 - masked)
    if content == "latent noise":
        before = before + noise_like(before, seed).to(before) / model.latent_scale * masked
    return (replace(samples, samples=before, noise_mask=cells),)


@node(
    "WebUIPaste",
    inputs={
        "image": Link("IMAGE"),
        "original": Link("IMAGE"),
        "mask": Link("MASK"),
        "only_masked": _ONLY_MASKED,
        "padding": _PADDING,
    },
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Paste",
    estimate=_paste_estimate,
)
def webui_paste(
    context: Context,
    image: Images,
    *,
    original: Images,
    mask: Mask,
    only_masked: bool,
    padding: int,
) -> tuple[Images]:
    """Puts what was made of an inpaint area into the original where the mask is."""
    from engine.diffusion.images.webui import inpainting
    from engine.diffusion.images.webui.resizing import resized

    mask = _mask_of(original, mask)
    if not only_masked:
        height, width = original.shape[1:3]
        same = resized(image, width, height, mode="just resize")
        return (inpainting.overlaid(same, original, mask, None),)
    region = inpainting.region_of(mask, image.shape[2], image.shape[1], padding=padding)
    covering = mask if mask.any() else mask + 1
    return (inpainting.overlaid(image, original, covering, region),)


def _mask_of(images: Images, mask: Mask) -> Mask:
    """The mask, stretched to the size of the images."""
    from engine.diffusion.images.webui.resizing import stretched_mask

    height, width = images.shape[1:3]
    return mask if mask.shape[1:] == (height, width) else stretched_mask(mask, width, height)
