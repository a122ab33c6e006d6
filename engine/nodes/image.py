"""Nodes that hand images over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.declarations import Link, String, node

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.diffusion.context import Context
    from engine.diffusion.latents import Images


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
)
def save_image(context: Context, images: Images, filename_prefix: str) -> list[NDArray[np.uint8]]:
    """Makes the images results of the job."""
    return context.pixels(images)
