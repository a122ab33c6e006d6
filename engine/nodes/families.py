"""Nodes for transformer models such as Z-Image and Flux: loaders, latents and schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.errors import EngineError
from engine.families.family import ModelName
from engine.families.table import FAMILIES
from engine.graph import work
from engine.graph.cost import DeepLatentShape, Estimate, ModelShape
from engine.graph.declarations import Choice, Float, Int, Link, String, node
from engine.graph.models_folder import DIFFUSION_MODELS, TEXT_ENCODERS
from engine.nodes.sides import MAX_SIDE
from engine.nodes.text import texts_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import FamilyTexts

_DEVICE = Choice(
    ("default", "cpu"), tooltip="Accepted and not used: the device of the engine is used."
)
_PATCH_PIXELS = 16 * 16
_LEAST_PATCHES, _MOST_PATCHES = 256, 4096
_MOST_MU = 20
"""The largest logarithm of a shift. With a larger value, all noise levels would be the same."""
_BY_TYPE = {each.clip_type: each for each in FAMILIES if each.clip_type}
_COSTLIEST = max(FAMILIES, key=lambda each: each.work.call)
"""The family that is assumed for a network of unknown family."""
_SHIFT = {"min": 0.0, "max": 100.0}


_GUIDANCE = Float(
    3.5, min=0.0, max=100.0, step=0.1, tooltip="How closely the image follows the text."
)


def _side(default: int) -> Int:
    return Int(default, min=16, max=MAX_SIDE, step=16, multiple=8, limit="side")


def _type(files: int, tooltip: str) -> Choice:
    """Return the input `type` of a loader that takes `files` files of text encoders."""
    taken = (each.clip_type for each in FAMILIES if each.clip_files == files)
    return Choice(tuple(filter(None, taken)), tooltip=tooltip)


def _texts(context: Context, type: str, *names: str) -> Work[FamilyTexts]:
    from engine.diffusion.loading.checkpoints import load_texts

    load = partial(load_texts, family=_BY_TYPE[type].family, names=names)
    return (yield from context.load_once((TEXT_ENCODERS, type, names), load))


def _network_estimate(inputs: Mapping[str, Any]) -> Estimate:
    name: ModelName = inputs["unet_name"]
    model = ModelShape(family=name.family or _COSTLIEST.family)
    return Estimate((model,), work=work.LOAD * model.traits.work.load)


def _texts_loader_estimate(inputs: Mapping[str, Any]) -> Estimate:
    traits = _BY_TYPE[inputs["type"]]
    shape = ModelShape(family=traits.family)
    return Estimate((shape,), work=work.LOAD * traits.work.text_load)


def _empty_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((DeepLatentShape(inputs["batch_size"], inputs["width"], inputs["height"]),))


def _guidance_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((inputs["conditioning"],))


@node(
    "UNETLoader",
    inputs={
        "unet_name": Choice(folder=DIFFUSION_MODELS, tooltip="The network to load."),
        "weight_dtype": Choice(
            ("default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"),
            tooltip="The type that the weights are rounded to. This does not reduce their memory.",
        ),
    },
    outputs=("MODEL",),
    category="advanced/loaders",
    display_name="Load Diffusion Model",
    estimate=_network_estimate,
)
def unet_loader(context: Context, unet_name: str, weight_dtype: str) -> Work[tuple[Model]]:
    """Loads the network of Z-Image or Flux, without its text encoders and VAE."""
    from engine.diffusion.loading.checkpoints import load_diffusion_model

    load = partial(load_diffusion_model, name=unet_name, weight_dtype=weight_dtype)
    return ((yield from context.load_once((DIFFUSION_MODELS, unet_name, weight_dtype), load)),)


@node(
    "CLIPLoader",
    inputs={
        "clip_name": Choice(folder=TEXT_ENCODERS, tooltip="The text encoder to load."),
        "type": _type(1, "The kind of model. Z-Image is lumina2."),
    },
    optional={"device": _DEVICE},
    outputs=("CLIP",),
    category="advanced/loaders",
    display_name="Load CLIP",
    estimate=_texts_loader_estimate,
)
def clip_loader(
    context: Context, *, clip_name: str, type: str, device: str = "default"
) -> Work[tuple[FamilyTexts]]:
    """Loads the text encoder of Z-Image."""
    return ((yield from _texts(context, type, clip_name)),)


@node(
    "DualCLIPLoader",
    inputs={
        "clip_name1": Choice(folder=TEXT_ENCODERS, tooltip="The file of CLIP-L or T5."),
        "clip_name2": Choice(folder=TEXT_ENCODERS, tooltip="The file of the other text encoder."),
        "type": _type(2, "The kind of model."),
    },
    optional={"device": _DEVICE},
    outputs=("CLIP",),
    category="advanced/loaders",
    estimate=_texts_loader_estimate,
)
def dual_clip_loader(
    context: Context, *, clip_name1: str, clip_name2: str, type: str, device: str = "default"
) -> Work[tuple[FamilyTexts]]:
    """Loads both text encoders of Flux."""
    return ((yield from _texts(context, type, *sorted((clip_name1, clip_name2)))),)


@node(
    "CLIPTextEncodeFlux",
    inputs={
        "clip": Link("CLIP"),
        "clip_l": String(multiline=True, tooltip="The text for CLIP."),
        "t5xxl": String(multiline=True, tooltip="The text for T5."),
        "guidance": _GUIDANCE,
    },
    outputs=("CONDITIONING",),
    category="advanced/conditioning/flux",
    estimate=partial(texts_estimate, names=("clip_l", "t5xxl")),
)
def clip_text_encode_flux(
    context: Context, *, clip: FamilyTexts, clip_l: str, t5xxl: str, guidance: float
) -> Work[tuple[Conditioning]]:
    """Encodes a text for each of Flux's text encoders, with the scale of its guidance."""
    from engine.diffusion.text.encoding import FamilyTexts

    if not isinstance(clip, FamilyTexts):
        raise EngineError("this node needs both text encoders of Flux, but only CLIP is given")
    conditioning = yield from clip.encode_pair(clip_l, t5xxl)
    return (tuple(replace(each, guidance=guidance) for each in conditioning),)


@node(
    "FluxGuidance",
    inputs={"conditioning": Link("CONDITIONING"), "guidance": _GUIDANCE},
    outputs=("CONDITIONING",),
    category="advanced/conditioning/flux",
    estimate=_guidance_estimate,
)
def flux_guidance(
    context: Context, conditioning: Conditioning, guidance: float
) -> tuple[Conditioning]:
    """Sets the guidance scale that a distilled Flux model takes as an input."""
    return (tuple(replace(each, guidance=guidance) for each in conditioning),)


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
    from engine.diffusion.images.latents import FLUX_CHANNELS

    return (context.latents.empty(width, height, batch_size, channels=FLUX_CHANNELS),)


@node(
    "ModelSamplingAuraFlow",
    inputs={
        "model": Link("MODEL"),
        "shift": Float(1.73, **_SHIFT, tooltip="A higher value puts more steps near the noise."),
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
        "shift": Float(3.0, **_SHIFT, tooltip="A higher value puts more steps near the noise."),
    },
    outputs=("MODEL",),
    category="advanced/model",
)
def model_sampling_sd3(context: Context, model: Model, shift: float) -> tuple[Model]:
    """Shifts the noise levels of a flow model."""
    return (model.with_shift(shift),)


@node(
    "ModelSamplingFlux",
    inputs={
        "model": Link("MODEL"),
        "max_shift": Float(1.15, **_SHIFT, tooltip="The shift of 1024 x 1024 pixels."),
        "base_shift": Float(0.5, **_SHIFT, tooltip="The shift of 256 x 256 pixels."),
        "width": _side(1024),
        "height": _side(1024),
    },
    outputs=("MODEL",),
    category="advanced/model",
)
def model_sampling_flux(
    context: Context,
    *,
    model: Model,
    max_shift: float,
    base_shift: float,
    width: int,
    height: int,
) -> tuple[Model]:
    """Shifts the noise levels of a flow model. The logarithm of the shift depends on the image's
    size.
    """
    patches = width * height / _PATCH_PIXELS
    slope = (max_shift - base_shift) / (_MOST_PATCHES - _LEAST_PATCHES)
    mu = base_shift + (patches - _LEAST_PATCHES) * slope
    if mu > _MOST_MU:
        raise EngineError(f"the shift is {mu:g} for that size, but may be at most {_MOST_MU}")
    return (model.with_shift(math.exp(mu), count=10_000),)
