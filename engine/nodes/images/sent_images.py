"""Nodes for programs that send images in the graph and take them from the websocket.

Their names are those of Acly's ComfyUI Tooling Nodes, which such programs ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.graph.cost import Estimate
from engine.graph.declarations import Choice, InputFile, Link, node
from engine.nodes.images.files import load_image, load_image_mask
from engine.nodes.images.image import save_image_websocket

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Mask

_SENT = InputFile(is_text=True, tooltip="An image in base64, or the name of an upload.")


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
    """Loads an image that is sent in the graph, and as a mask where it is transparent."""
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
    """Loads the red of an image that is sent in the graph as a mask."""
    return (context.mask_file(mask, "red"),)


@node(
    "ETN_SendImageWebSocket",
    inputs={
        "images": Link("IMAGE"),
        "format": Choice(
            ("PNG", "JPEG"), tooltip="Accepted and not used: that of the job's images is."
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
    """Makes the images results of the job, and sends them to those who listen as ComfyUI does."""
    return context.pixels(images)
