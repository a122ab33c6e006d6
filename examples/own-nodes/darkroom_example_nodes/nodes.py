"""The declarations of the nodes.

HTTP replicas import this module without torch, so the functions import the module that uses torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape
from engine.graph.declarations import Float, Int, Link, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images

NODES_API = "1.0"


def _same_size(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return Estimate(
        (images,), work=images.megapixels * work.COPY, scratch_bytes=2 * images.size_bytes
    )


def _blurred(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    return Estimate(
        (images,), work=images.megapixels * work.RESAMPLE, scratch_bytes=3 * images.size_bytes
    )


@node(
    "ExampleVignette",
    inputs={
        "image": Link("IMAGE"),
        "strength": Float(0.5, min=0.0, max=1.0, tooltip="How dark the corners become."),
    },
    outputs=("IMAGE",),
    category="example",
    display_name="Vignette",
    estimate=_same_size,
)
def vignette(context: Context, image: Images, strength: float) -> tuple[Images]:
    """Darkens images towards their corners."""
    from darkroom_example_nodes.pictures import falloff

    _, height, width, _ = image.shape
    return (image * (1.0 - strength * falloff(width, height))[..., None],)


@node(
    "ExampleBoxBlur",
    inputs={
        "image": Link("IMAGE"),
        "radius": Int(2, min=1, max=64, tooltip="In pixels."),
    },
    outputs=("IMAGE",),
    category="example",
    display_name="Box Blur",
    estimate=_blurred,
)
def box_blur(context: Context, image: Images, radius: int) -> Work[tuple[Images]]:
    """Blurs images on the device. Jobs with the same radius and size share one call."""
    from darkroom_example_nodes.pictures import BoxBlur

    images = yield BoxBlur(image, radius, context.device)
    return (images,)
