"""Nodes that load upscale models and enlarge images with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape
from engine.graph.declarations import Choice, Link, node
from engine.graph.default_shapes import default_estimate
from engine.graph.models_folder import UPSCALE_MODELS

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images
    from engine.diffusion.images.upscale_networks import UpscaleNetwork


def _load_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return replace(default_estimate(("UPSCALE_MODEL",)), work=work.LOAD_PART)


def _upscale_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    larger = images.scaled(inputs["upscale_model"])
    # The tiles are added up beside their weights, then divided.
    return Estimate(
        (larger,), work=images.megapixels * work.UPSCALE, scratch_bytes=2 * larger.size_bytes
    )


@node(
    "UpscaleModelLoader",
    inputs={"model_name": Choice(folder=UPSCALE_MODELS)},
    outputs=("UPSCALE_MODEL",),
    category="loaders",
    display_name="Load Upscale Model",
    estimate=_load_estimate,
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
    estimate=_upscale_estimate,
)
def image_upscale_with_model(
    context: Context, upscale_model: UpscaleNetwork, image: Images
) -> Work[tuple[Images]]:
    """Enlarges images by the factor that the model was trained for."""
    images = yield from context.upscaled(upscale_model, image)
    return (images,)
