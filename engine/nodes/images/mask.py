"""Nodes that make masks and use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph.cost import Estimate, ImageShape, LatentShape, MaskShape, saturated
from engine.graph.declarations import Choice, Int, Link, node
from engine.nodes.latents.latent import encode_estimate

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask
    from engine.diffusion.images.vae import Vae


def _to_image_estimate(inputs: Mapping[str, Any]) -> Estimate:
    mask: MaskShape = inputs["mask"]
    return Estimate((ImageShape(mask.count, mask.width, mask.height),))


def _to_mask_estimate(inputs: Mapping[str, Any]) -> Estimate:
    image: ImageShape = inputs["image"]
    # The mask is a view of the images, so they stay.
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
    """Makes grey images of a mask."""
    return (context.images.from_mask(mask),)


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
    """Has a sampler make a latent anew where the mask is, and keep the rest."""
    return (replace(samples, noise_mask=mask.reshape(-1, *mask.shape[-2:])),)


@node(
    "VAEEncodeForInpaint",
    inputs={
        "pixels": Link("IMAGE"),
        "vae": Link("VAE"),
        "mask": Link("MASK"),
        "grow_mask_by": Int(6, min=0, max=64, tooltip="In pixels, so that no seam shows."),
    },
    outputs=("LATENT",),
    category="latent/inpaint",
    display_name="VAE Encode (for Inpainting)",
    estimate=encode_estimate,
)
def vae_encode_for_inpaint(
    context: Context, pixels: Images, vae: Vae, mask: Mask, *, grow_mask_by: int
) -> Work[tuple[Latent]]:
    """Encodes images without what the mask covers, for a sampler to make anew."""
    latent = yield from context.encode_for_inpainting(vae, pixels, mask, grow_by=grow_mask_by)
    return (latent,)
