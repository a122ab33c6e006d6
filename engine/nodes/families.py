"""Nodes of transformers such as Z-Image and Flux: their parts, their latents, their schedules."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import DeepLatentShape, Estimate, ModelShape
from engine.graph.declarations import Choice, Float, Int, Link, node
from engine.graph.models_folder import DIFFUSION_MODELS, TEXT_ENCODERS
from engine.nodes.sides import MAX_SIDE

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent
    from engine.diffusion.model import Model
    from engine.diffusion.text.family_texts import FamilyTexts

_HEAVY = ModelShape(weight=work.TRANSFORMER)
_DEVICE = Choice(("default", "cpu"), tooltip="Whatever it is, the device of the engine is used.")
_SHIFT = {"min": 0.0, "max": 100.0}


def _side(default: int) -> Int:
    return Int(default, min=16, max=MAX_SIDE, step=16, multiple=8, limit="side")


def _heavy_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((_HEAVY,), work=work.LOAD)


def _empty_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((DeepLatentShape(inputs["batch_size"], inputs["width"], inputs["height"]),))


@node(
    "UNETLoader",
    inputs={
        "unet_name": Choice(folder=DIFFUSION_MODELS, tooltip="The network to load."),
        "weight_dtype": Choice(
            ("default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"),
            tooltip="What the weights are rounded to. They take as much memory as without.",
        ),
    },
    outputs=("MODEL",),
    category="advanced/loaders",
    display_name="Load Diffusion Model",
    estimate=_heavy_estimate,
)
def unet_loader(context: Context, unet_name: str, weight_dtype: str) -> Work[tuple[Model]]:
    """Loads the network of Z-Image or Flux, without text encoders and VAE."""
    from engine.diffusion.families.loading import load_diffusion_model

    load = partial(load_diffusion_model, name=unet_name, weight_dtype=weight_dtype)
    return ((yield from context.made((DIFFUSION_MODELS, unet_name, weight_dtype), load)),)


@node(
    "CLIPLoader",
    inputs={
        "clip_name": Choice(folder=TEXT_ENCODERS, tooltip="The text encoder to load."),
        "type": Choice(("lumina2",), tooltip="The kind of model: lumina2 stands for Z-Image."),
    },
    optional={"device": _DEVICE},
    outputs=("CLIP",),
    category="advanced/loaders",
    display_name="Load CLIP",
    estimate=_heavy_estimate,
)
def clip_loader(
    context: Context, *, clip_name: str, type: str, device: str = "default"
) -> Work[tuple[FamilyTexts]]:
    """Loads the text encoder of Z-Image."""
    from engine.diffusion.families.loading import load_z_image_texts

    load = partial(load_z_image_texts, name=clip_name)
    return ((yield from context.made((TEXT_ENCODERS, type, clip_name), load)),)


@node(
    "EmptySD3LatentImage",
    inputs={
        "width": _side(1024),
        "height": _side(1024),
        "batch_size": Int(1, min=1, max=4096, limit="batch", tooltip="The number of images."),
    },
    outputs=("LATENT",),
    category="latent/sd3",
    estimate=_empty_estimate,
    pixel_inputs=("width", "height", "batch_size"),
)
def empty_sd3_latent_image(
    context: Context, width: int, height: int, batch_size: int
) -> tuple[Latent]:
    """Makes a batch of empty latents of 16 channels."""
    from engine.diffusion.images.latents import DEEP_CHANNELS

    return (context.latents.empty(width, height, batch_size, channels=DEEP_CHANNELS),)


@node(
    "ModelSamplingAuraFlow",
    inputs={
        "model": Link("MODEL"),
        "shift": Float(1.73, **_SHIFT, tooltip="The higher, the more steps are near the noise."),
    },
    outputs=("MODEL",),
    category="advanced/model",
)
def model_sampling_aura_flow(context: Context, model: Model, shift: float) -> tuple[Model]:
    """Shifts the noise levels of a flow model."""
    return (model.with_shift(shift),)


@node(
    "ModelSamplingSD3",
    inputs={
        "model": Link("MODEL"),
        "shift": Float(3.0, **_SHIFT, tooltip="The higher, the more steps are near the noise."),
    },
    outputs=("MODEL",),
    category="advanced/model",
)
def model_sampling_sd3(context: Context, model: Model, shift: float) -> tuple[Model]:
    """Shifts the noise levels of a flow model."""
    return (model.with_shift(shift),)
