"""Nodes that enlarge between the passes of the hires fix, as the WebUI does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, LatentShape
from engine.graph.declarations import Choice, Link, node
from engine.nodes.images.upscale_model import image_upscale_with_model
from engine.nodes.latents.latent import latent_upscale
from engine.nodes.sides import side

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent
    from engine.diffusion.images.upscale_networks import UpscaleNetwork

_METHODS = Choice(
    (
        "bilinear",
        "bilinear antialiased",
        "bicubic",
        "bicubic antialiased",
        "nearest",
        "nearest-exact",
    )
)
_MOST_TIMES = 3
_SIZE = {"width": side(512), "height": side(512)}


def _upscale_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    total, scratch = 0.0, 0
    for _ in range(_MOST_TIMES):
        if images.width >= inputs["width"] and images.height >= inputs["height"]:
            break
        once = image_upscale_with_model.estimated({**inputs, "image": images})
        total, scratch = total + once.work, max(scratch, once.scratch_bytes)
        images = images.scaled(inputs["upscale_model"])
    return Estimate((images,), work=total, scratch_bytes=scratch)


def _crop_estimate(inputs: Mapping[str, Any]) -> Estimate:
    samples: LatentShape = inputs["samples"]
    cropped = samples.sized(inputs["width"], inputs["height"])
    return Estimate((cropped,), work=cropped.megapixels * work.COPY)


@node(
    "WebUILatentUpscale",
    inputs={**latent_upscale.inputs, "upscale_method": _METHODS},
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Latent Upscale",
    pixel_inputs=latent_upscale.pixel_inputs,
    estimate=latent_upscale.estimate,
)
def webui_latent_upscale(context: Context, **inputs: Any) -> tuple[Latent]:
    """Brings latents to the size of images of `width` x `height` pixels, by the WebUI's methods."""
    latents: tuple[Latent] = latent_upscale.body(context, **inputs)
    return latents


@node(
    "WebUIImageUpscale",
    inputs={"upscale_model": Link("UPSCALE_MODEL"), "image": Link("IMAGE"), **_SIZE},
    outputs=("IMAGE",),
    category="darkroom",
    display_name="WebUI Image Upscale",
    estimate=_upscale_estimate,
)
def webui_image_upscale(
    context: Context, *, upscale_model: UpscaleNetwork, image: Images, width: int, height: int
) -> Work[tuple[Images]]:
    """Enlarges images with a model, again and again until they are of a size or larger."""
    for _ in range(_MOST_TIMES):
        before = image.shape
        if before[2] >= width and before[1] >= height:
            break
        image = yield from context.upscaled(upscale_model, image)
        if image.shape == before:
            break
    return (image,)


@node(
    "WebUILatentCrop",
    inputs={"samples": Link("LATENT"), **_SIZE},
    outputs=("LATENT",),
    category="darkroom",
    display_name="WebUI Latent Crop",
    estimate=_crop_estimate,
)
def webui_latent_crop(context: Context, samples: Latent, width: int, height: int) -> tuple[Latent]:
    """Cuts off what latents have around the middle `width` x `height` pixels."""
    return (context.latents.cropped(samples, width, height),)
