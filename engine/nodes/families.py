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
from engine.families.table import FAMILIES, TRAITS
from engine.graph import work
from engine.graph.cost import (
    ConditioningShape,
    DeepLatentShape,
    Estimate,
    ImageShape,
    LatentShape,
    ModelShape,
    saturated,
)
from engine.graph.declarations import Choice, Float, Int, Link, String, node
from engine.graph.models_folder import DIFFUSION_MODELS, TEXT_ENCODERS
from engine.nodes.sides import MAX_SIDE
from engine.nodes.text import texts_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Latent
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip, FamilyTexts

_DEVICE = Choice(
    ("default", "cpu"), tooltip="Accepted and not used: the device of the engine is used."
)
_PATCH_PIXELS = 16 * 16
_LEAST_PATCHES, _MOST_PATCHES = 256, 4096
_MOST_MU = 20
"""The largest logarithm of a shift. With a larger value, all noise levels would be the same."""
_COSTLIEST = max(FAMILIES, key=lambda each: each.work.call)
"""The family that is assumed for a network of unknown family."""
_SHIFT = {"min": 0.0, "max": 100.0}


_GUIDANCE = Float(
    3.5, min=0.0, max=100.0, step=0.1, tooltip="How closely the image follows the text."
)


def _side(default: int) -> Int:
    return Int(default, min=16, max=MAX_SIDE, step=16, multiple=8, limit="side")


_SINGLE_TYPES = (
    "stable_diffusion",
    "stable_cascade",
    "sd3",
    "stable_audio",
    "mochi",
    "ltxv",
    "pixart",
    "cosmos",
    "lumina2",
    "wan",
    "hidream",
    "chroma",
    "ace",
    "omnigen2",
    "qwen_image",
    "hunyuan_image",
    "flux2",
)
_DUAL_TYPES = (
    "sdxl",
    "sd3",
    "flux",
    "hunyuan_video",
    "hidream",
    "hunyuan_image",
    "hunyuan_video_15",
)
_TYPE = "Accepted and not used: the file shows the kind of its text encoder."


def _texts(context: Context, *names: str) -> Work[Clip | FamilyTexts]:
    from engine.diffusion.loading.checkpoints import load_texts

    return (yield from context.load_once((TEXT_ENCODERS, names), partial(load_texts, names=names)))


def _network_estimate(inputs: Mapping[str, Any]) -> Estimate:
    name: ModelName = inputs["unet_name"]
    model = ModelShape(family=name.family or _COSTLIEST.family)
    return Estimate((model,), work=work.LOAD * model.traits.work.load)


def _texts_loader_estimate(inputs: Mapping[str, Any]) -> Estimate:
    names: list[ModelName] = [each for each in inputs.values() if isinstance(each, ModelName)]
    families = [TRAITS[each.family] if each.family else _COSTLIEST for each in names]
    shape = ModelShape(family=max(families, key=lambda each: each.work.text).family)
    return Estimate((shape,), work=work.LOAD * shape.traits.work.text_load)


def _empty_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((DeepLatentShape(inputs["batch_size"], inputs["width"], inputs["height"]),))


def _same_conditioning(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((inputs["conditioning"],))


def _reference_estimate(inputs: Mapping[str, Any]) -> Estimate:
    conditioning: ConditioningShape = inputs["conditioning"]
    latent: LatentShape | None = inputs.get("latent")
    if latent is None:
        return Estimate((conditioning,))
    pixels = saturated(conditioning.reference_pixels + latent.width * latent.height)
    return Estimate((replace(conditioning.holding(latent.size_bytes), reference_pixels=pixels),))


_KONTEXT_PORTRAITS = (
    (672, 1568),
    (688, 1504),
    (720, 1456),
    (752, 1392),
    (800, 1328),
    (832, 1248),
    (880, 1184),
    (944, 1104),
    (1024, 1024),
)
# Sorted, because the narrower of two equally close sizes is used, as in ComfyUI.
_KONTEXT_SIZES = sorted({*_KONTEXT_PORTRAITS, *(size[::-1] for size in _KONTEXT_PORTRAITS)})
"""The widths and heights on which Flux.1 Kontext was trained (arXiv:2506.15742)."""


def _kontext_size(width: int, height: int) -> tuple[int, int]:
    return min(_KONTEXT_SIZES, key=lambda size: abs(width / height - size[0] / size[1]))


def _kontext_estimate(inputs: Mapping[str, Any]) -> Estimate:
    images: ImageShape = inputs["image"]
    scaled = images.sized(*_kontext_size(images.width, images.height))
    resized = max(images.megapixels, scaled.megapixels)
    return Estimate((scaled,), work=resized * work.RESAMPLE, scratch_bytes=scaled.size_bytes)


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
        "type": Choice(_SINGLE_TYPES, tooltip=_TYPE),
    },
    optional={"device": _DEVICE},
    outputs=("CLIP",),
    category="advanced/loaders",
    display_name="Load CLIP",
    estimate=_texts_loader_estimate,
)
def clip_loader(
    context: Context, *, clip_name: str, type: str, device: str = "default"
) -> Work[tuple[Clip | FamilyTexts]]:
    """Loads a text encoder: that of Z-Image, or CLIP of Stable Diffusion 1, 2 or XL's refiner."""
    return ((yield from _texts(context, clip_name)),)


@node(
    "DualCLIPLoader",
    inputs={
        "clip_name1": Choice(folder=TEXT_ENCODERS, tooltip="The file of one text encoder."),
        "clip_name2": Choice(folder=TEXT_ENCODERS, tooltip="The file of the other text encoder."),
        "type": Choice(_DUAL_TYPES, tooltip=_TYPE),
    },
    optional={"device": _DEVICE},
    outputs=("CLIP",),
    category="advanced/loaders",
    estimate=_texts_loader_estimate,
)
def dual_clip_loader(
    context: Context, *, clip_name1: str, clip_name2: str, type: str, device: str = "default"
) -> Work[tuple[Clip | FamilyTexts]]:
    """Loads both text encoders of Flux (CLIP-L and T5) or of Stable Diffusion XL (CLIP-L and
    CLIP-G).
    """
    return ((yield from _texts(context, *sorted((clip_name1, clip_name2)))),)


@node(
    "CLIPTextEncodeFlux",
    inputs={
        "clip": Link("CLIP"),
        "clip_l": String(multiline=True, dynamic_prompts=True, tooltip="The text for CLIP."),
        "t5xxl": String(multiline=True, dynamic_prompts=True, tooltip="The text for T5."),
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
    estimate=_same_conditioning,
)
def flux_guidance(
    context: Context, conditioning: Conditioning, guidance: float
) -> tuple[Conditioning]:
    """Sets the guidance scale that a distilled Flux model takes as an input."""
    return (tuple(replace(each, guidance=guidance) for each in conditioning),)


@node(
    "FluxDisableGuidance",
    inputs={"conditioning": Link("CONDITIONING")},
    outputs=("CONDITIONING",),
    category="advanced/conditioning/flux",
    estimate=_same_conditioning,
)
def flux_disable_guidance(context: Context, conditioning: Conditioning) -> tuple[Conditioning]:
    """Leaves out the guidance scale that a distilled Flux model takes as an input."""
    return (tuple(replace(each, guidance=None) for each in conditioning),)


@node(
    "ReferenceLatent",
    inputs={"conditioning": Link("CONDITIONING")},
    optional={"latent": Link("LATENT", tooltip="The picture. Without it, nothing is added.")},
    outputs=("CONDITIONING",),
    category="advanced/conditioning/edit_models",
    estimate=_reference_estimate,
)
def reference_latent(
    context: Context, conditioning: Conditioning, latent: Latent | None = None
) -> tuple[Conditioning]:
    """Adds a picture for models that edit pictures, such as Flux.1 Kontext. Several nodes in a row
    add several pictures.
    """
    if latent is None:
        return (conditioning,)
    return (
        tuple(
            replace(each, reference_latents=(*each.reference_latents, latent.samples))
            for each in conditioning
        ),
    )


@node(
    "FluxKontextImageScale",
    inputs={"image": Link("IMAGE")},
    outputs=("IMAGE",),
    category="advanced/conditioning/flux",
    estimate=_kontext_estimate,
)
def flux_kontext_image_scale(context: Context, image: Images) -> tuple[Images]:
    """Resizes images to the size, among those of Flux.1 Kontext, with the closest proportions."""
    width, height = _kontext_size(image.shape[2], image.shape[1])
    return (context.images.scaled(image, width, height, method="lanczos", crop="center"),)


@node(
    "FluxKontextMultiReferenceLatentMethod",
    inputs={
        "conditioning": Link("CONDITIONING"),
        "reference_latents_method": Choice(
            ("offset", "index", "uxo/uno", "index_timestep_zero"),
            tooltip="How reference latents are placed: beside each other, each on a layer of its "
            "own, or diagonally below the image. For Flux.1, index_timestep_zero is the same as "
            "offset.",
        ),
    },
    outputs=("CONDITIONING",),
    category="advanced/conditioning/flux",
    display_name="Edit Model Reference Method",
    estimate=_same_conditioning,
)
def flux_kontext_multi_reference_latent_method(
    context: Context, conditioning: Conditioning, reference_latents_method: str
) -> tuple[Conditioning]:
    """Sets the positions of several reference latents."""
    method = reference_latents_method.partition("/")[0]
    return (tuple(replace(each, reference_method=method) for each in conditioning),)


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
