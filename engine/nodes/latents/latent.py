"""Nodes that make latents, change them, and convert them to images and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, LatentShape
from engine.graph.declarations import Choice, Float, Int, Link, node
from engine.nodes.sides import CROP, MAX_SIDE, side

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent
    from engine.diffusion.images.vae import Vae

_METHODS = Choice(("nearest-exact", "bilinear", "area", "bicubic", "bislerp"))
_SLERP_COPIES = 8
"""Spherical interpolation keeps both neighbours of each cell, their directions and angles."""
_IN_PROPORTION = "In pixels; 0 keeps the proportions."


def _empty_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((LatentShape(inputs["batch_size"], inputs["width"], inputs["height"]),))


def encode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """What it costs to encode `pixels`, and to keep a `mask` with the latent."""
    images: ImageShape = inputs["pixels"]
    held = images.size_bytes // 3 if "mask" in inputs else 0
    latent = LatentShape(images.count, images.width, images.height, held)
    return Estimate(
        (latent,), work=images.attended_megapixels() * work.ENCODE, scratch_bytes=images.size_bytes
    )


def changed_latent(before: LatentShape, after: LatentShape) -> Estimate:
    """A latent that is made from another."""
    largest = max(before.megapixels, after.megapixels)
    return Estimate((after,), work=largest * work.COPY, scratch_bytes=after.size_bytes)


def _resized_latent(before: LatentShape, after: LatentShape) -> Estimate:
    """A latent that is resized along its rows first, then along its columns."""
    between = before.sized(after.width, before.height)
    largest = max(before, between, after, key=lambda each: each.megapixels)
    return Estimate(
        (after,),
        work=largest.megapixels * work.RESAMPLE,
        scratch_bytes=_SLERP_COPIES * largest.size_bytes,
    )


def upscale_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """What it costs to bring `samples` to `width` x `height`. No side becomes less than 64."""
    latent: LatentShape = inputs["samples"]
    sides = (side and max(64, side) for side in (inputs["width"], inputs["height"]))
    return _resized_latent(latent, latent.sized(*sides))


def _upscale_by_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    return _resized_latent(latent, latent.scaled(inputs["scale_by"]))


def _composite_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return changed_latent(inputs["samples_from"], inputs["samples_to"])


def _decode_estimate(inputs: Mapping[str, Any]) -> Estimate:
    latent: LatentShape = inputs["samples"]
    images = ImageShape(latent.count, latent.width, latent.height)
    return Estimate(
        (images,), work=latent.attended_megapixels() * work.DECODE, scratch_bytes=images.size_bytes
    )


@node(
    "EmptyLatentImage",
    inputs={
        "width": Int(
            512, min=16, max=MAX_SIDE, step=8, multiple=8, limit="side", tooltip="In pixels."
        ),
        "height": Int(
            512, min=16, max=MAX_SIDE, step=8, multiple=8, limit="side", tooltip="In pixels."
        ),
        "batch_size": Int(1, min=1, max=4096, limit="batch", tooltip="The number of images."),
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Empty Latent Image",
    estimate=_empty_estimate,
    pixel_inputs=("width", "height", "batch_size"),
)
def empty_latent_image(context: Context, width: int, height: int, batch_size: int) -> tuple[Latent]:
    """Makes a batch of empty latents to be denoised."""
    return (context.latents.empty(width, height, batch_size),)


@node(
    "VAEDecode",
    inputs={"samples": Link("LATENT"), "vae": Link("VAE")},
    outputs=("IMAGE",),
    category="latent",
    display_name="VAE Decode",
    estimate=_decode_estimate,
)
def vae_decode(context: Context, samples: Latent, vae: Vae) -> Work[tuple[Images]]:
    """Decodes latents into images."""
    images = yield from context.decode(vae, samples)
    return (images,)


@node(
    "VAEEncode",
    inputs={"pixels": Link("IMAGE"), "vae": Link("VAE")},
    outputs=("LATENT",),
    category="latent",
    display_name="VAE Encode",
    estimate=encode_estimate,
)
def vae_encode(context: Context, pixels: Images, vae: Vae) -> Work[tuple[Latent]]:
    """Encodes images into latents; sides that are no multiple of 8 are cropped evenly."""
    latent = yield from context.encode_images(vae, pixels)
    return (latent,)


@node(
    "LatentUpscale",
    inputs={
        "samples": Link("LATENT"),
        "upscale_method": _METHODS,
        "width": side(512, tooltip=_IN_PROPORTION),
        "height": side(512, tooltip=_IN_PROPORTION),
        "crop": CROP,
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Upscale Latent",
    pixel_inputs=("width", "height"),
    estimate=upscale_estimate,
)
def latent_upscale(
    context: Context, samples: Latent, *, upscale_method: str, width: int, height: int, crop: str
) -> tuple[Latent]:
    """Brings latents to the size of images of `width` x `height` pixels."""
    return (context.latents.scaled(samples, width, height, method=upscale_method, crop=crop),)


@node(
    "LatentUpscaleBy",
    inputs={
        "samples": Link("LATENT"),
        "upscale_method": _METHODS,
        "scale_by": Float(1.5, min=0.01, max=8.0),
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Upscale Latent By",
    estimate=_upscale_by_estimate,
)
def latent_upscale_by(
    context: Context, samples: Latent, upscale_method: str, scale_by: float
) -> tuple[Latent]:
    """Makes latents larger or smaller by a factor."""
    return (context.latents.scaled_by(samples, scale_by, method=upscale_method),)


@node(
    "LatentComposite",
    inputs={
        "samples_to": Link("LATENT"),
        "samples_from": Link("LATENT"),
        "x": Int(0, min=0, max=MAX_SIDE, step=8, tooltip="In pixels."),
        "y": Int(0, min=0, max=MAX_SIDE, step=8, tooltip="In pixels."),
        "feather": Int(0, min=0, max=MAX_SIDE, step=8, tooltip="Width of the soft edge."),
    },
    outputs=("LATENT",),
    category="latent",
    display_name="Latent Composite",
    estimate=_composite_estimate,
)
def latent_composite(
    context: Context, samples_to: Latent, samples_from: Latent, *, x: int, y: int, feather: int
) -> tuple[Latent]:
    """Puts one latent over another."""
    return (context.latents.pasted(samples_to, samples_from, x=x, y=y, feather=feather),)
