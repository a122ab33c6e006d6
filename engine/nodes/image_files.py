"""Nodes that load images from files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.graph.declarations import Choice, InputFile, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Mask


@node(
    "LoadImage",
    inputs={"image": InputFile(tooltip="An uploaded image.")},
    outputs=("IMAGE", "MASK"),
    category="image",
    display_name="Load Image",
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
)
def load_image_mask(context: Context, image: str, channel: str) -> tuple[Mask]:
    """Loads one channel of an image as a mask; alpha masks what is transparent."""
    return (context.mask_file(image, channel),)
