"""Nodes that load upscale models and enlarge images with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.batcher import Work
from engine.graph.declarations import Choice, Link, node
from engine.graph.models_folder import UPSCALE_MODELS

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images
    from engine.diffusion.images.upscale_networks import UpscaleNetwork


@node(
    "UpscaleModelLoader",
    inputs={"model_name": Choice(folder=UPSCALE_MODELS)},
    outputs=("UPSCALE_MODEL",),
    category="loaders",
    display_name="Load Upscale Model",
)
def upscale_model_loader(context: Context, model_name: str) -> Work[tuple[UpscaleNetwork]]:
    """Loads a model that enlarges images (ESRGAN or Real-ESRGAN, safetensors)."""
    network = yield from context.upscale_model(model_name)
    return (network,)


@node(
    "ImageUpscaleWithModel",
    inputs={"upscale_model": Link("UPSCALE_MODEL"), "image": Link("IMAGE")},
    outputs=("IMAGE",),
    category="image/upscaling",
    display_name="Upscale Image (using Model)",
)
def image_upscale_with_model(
    context: Context, upscale_model: UpscaleNetwork, image: Images
) -> Work[tuple[Images]]:
    """Enlarges images by the factor that the model was trained for."""
    images = yield from context.upscaled(upscale_model, image)
    return (images,)
