"""Nodes that load images and latents from files, and save latents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, LatentShape, MaskShape
from engine.graph.declarations import Choice, InputFile, Link, String, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent, Mask
    from engine.reports import SavedLatent


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
    """Loads an image, and as a mask where it is transparent; of an animation every frame."""
    return context.image_file(image)


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
    """Loads one channel of an image as a mask; alpha masks what is transparent."""
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
    """Makes a batch of latents a result of the job, as one file."""
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
