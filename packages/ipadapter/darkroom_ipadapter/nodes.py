"""The nodes of the package, with the names and inputs of ComfyUI's nodes.

API replicas import this module but must not load torch. So modules that need torch are imported
inside the functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from darkroom_ipadapter import weights
from darkroom_ipadapter.presets import PRESETS, adapter_file, clip_vision_file
from engine.batcher import Work
from engine.errors import EngineError
from engine.graph import work
from engine.graph.cost import Estimate, ImageShape, model_shape
from engine.graph.declarations import Choice, Float, Link, node

if TYPE_CHECKING:
    from darkroom_ipadapter.adapter import Adapter
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Mask

NODES_API = "1.1"
FOLDER = "ipadapter"
_XL_TEXT_WIDTH = 2048
_PICTURE_BYTES = 24 * 2**20
"""The size of the keys and values of a picture in all layers of the largest UNet, for both
conditionings.
"""
_PICTURE_TOKENS = 16
"""The number of tokens of a picture with a "plus" adapter. Other adapters make four."""
_SIMPLE_TYPES = {
    "standard": weights.LINEAR,
    "prompt is more important": "ease out",
    "style transfer": "style transfer",
}
_COMBINING = ("concat", "add", "subtract", "average", "norm average")
_SCALING = ("V only", "K+V", "K+V w/ C penalty", "K+mean(V) w/ C penalty")


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """An adapter, and the CLIP vision model that was loaded with it."""

    adapter: Adapter
    clip_vision: Any = None


def _loaded_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((None,), work=work.LOAD_PART)


def _unified_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((inputs["model"], None), work=2 * work.LOAD_PART)


def _applied_estimate(inputs: Mapping[str, Any]) -> Estimate:
    pictures: list[ImageShape] = [inputs["image"]]
    if negative := inputs.get("image_negative"):
        pictures.append(negative)
    count = sum(each.count for each in pictures)
    mask = inputs.get("attn_mask")
    prompt_bytes = pictures[0].count * _PICTURE_BYTES + (mask.size_bytes if mask else 0)
    return Estimate(
        (model_shape(inputs["model"]).holding(prompt_bytes, pictures[0].count * _PICTURE_TOKENS),),
        work=count * 2 * work.VISION + sum(each.megapixels for each in pictures) * work.RESAMPLE,
        scratch_bytes=prompt_bytes + sum(each.size_bytes for each in pictures),
    )


def _share(default: float, which: str) -> Float:
    return Float(
        default,
        min=0.0,
        max=1.0,
        step=0.001,
        tooltip=f"The {which} timestep with an effect, as a share of all timesteps.",
    )


def _strength(most: float) -> Float:
    return Float(1.0, min=-1.0, max=most, step=0.05, tooltip="The weight of the picture.")


_MASK = Link("MASK", tooltip="The part of the image in which the picture has an effect.")


@node(
    "IPAdapterModelLoader",
    inputs={"ipadapter_file": Choice(folder=FOLDER, tooltip="The IP-Adapter to load.")},
    outputs=("IPADAPTER",),
    category="ipadapter/loaders",
    display_name="IPAdapter Model Loader",
    estimate=_loaded_estimate,
)
def model_loader(context: Context, ipadapter_file: str) -> Work[tuple[Loaded]]:
    """Loads an IP-Adapter for Stable Diffusion 1.5 or XL, plain or "plus"."""
    from darkroom_ipadapter.adapter import read_adapter

    return (Loaded((yield from context.model(FOLDER, ipadapter_file, read_adapter))),)


@node(
    "IPAdapterUnifiedLoader",
    inputs={"model": Link("MODEL"), "preset": Choice(PRESETS)},
    optional={"ipadapter": Link("IPADAPTER", tooltip="Accepted and not used: files are shared.")},
    outputs=("MODEL", "IPADAPTER"),
    output_names=("model", "ipadapter"),
    category="ipadapter",
    display_name="IPAdapter Unified Loader",
    estimate=_unified_estimate,
)
def unified_loader(
    context: Context, model: Any, preset: str, ipadapter: Loaded | None = None
) -> Work[tuple[Any, Loaded]]:
    """Loads the IP-Adapter of a preset and its CLIP vision model, by the names of their files."""
    from darkroom_ipadapter.adapter import read_adapter

    is_xl = context.vision.cross_attentions(model)[0].text_width == _XL_TEXT_WIDTH
    name = adapter_file(preset, context.model_names(FOLDER), is_xl=is_xl)
    vision_name = clip_vision_file(preset, context.model_names("clip_vision"))
    clip_vision = yield from context.vision.load(vision_name)
    adapter = yield from context.model(FOLDER, name, read_adapter)
    return model, Loaded(adapter, clip_vision)


@node(
    "IPAdapter",
    inputs={
        "model": Link("MODEL"),
        "ipadapter": Link("IPADAPTER"),
        "image": Link("IMAGE"),
        "weight": _strength(3.0),
        "start_at": _share(0.0, "first"),
        "end_at": _share(1.0, "last"),
        "weight_type": Choice(tuple(_SIMPLE_TYPES)),
    },
    optional={"attn_mask": _MASK},
    outputs=("MODEL",),
    category="ipadapter",
    display_name="IPAdapter",
    estimate=_applied_estimate,
)
def ip_adapter(
    context: Context, *, weight_type: str, ipadapter: Loaded, **inputs: Any
) -> Work[tuple[Any]]:
    """Lets a picture guide a model in addition to the text.

    It uses the models of the unified loader.
    """
    own_type = _SIMPLE_TYPES[weight_type]
    return (yield from _applied(context, ipadapter, weight_type=own_type, **inputs))


@node(
    "IPAdapterAdvanced",
    inputs={
        "model": Link("MODEL"),
        "ipadapter": Link("IPADAPTER"),
        "image": Link("IMAGE"),
        "weight": _strength(5.0),
        "weight_type": Choice(
            weights.TYPES, tooltip="How the weight is distributed over the layers."
        ),
        "combine_embeds": Choice(_COMBINING, tooltip="How several pictures are combined."),
        "start_at": _share(0.0, "first"),
        "end_at": _share(1.0, "last"),
        "embeds_scaling": Choice(
            _SCALING, tooltip="Which parts of the attention the weight changes."
        ),
    },
    optional={
        "image_negative": Link("IMAGE", tooltip="The picture for the negative conditioning."),
        "attn_mask": _MASK,
        "clip_vision": Link("CLIP_VISION"),
    },
    outputs=("MODEL",),
    category="ipadapter",
    display_name="IPAdapter Advanced",
    estimate=_applied_estimate,
)
def ip_adapter_advanced(
    context: Context, *, ipadapter: Loaded, clip_vision: Any = None, **inputs: Any
) -> Work[tuple[Any]]:
    """Lets pictures guide a model in addition to the text."""
    found = ipadapter if clip_vision is None else Loaded(ipadapter.adapter, clip_vision)
    return (yield from _applied(context, found, **inputs))


def _applied(
    context: Context,
    loaded: Loaded,
    *,
    model: Any,
    image: Images,
    weight: float,
    start_at: float,
    end_at: float,
    weight_type: str,
    combine_embeds: str = "concat",
    embeds_scaling: str = "V only",
    image_negative: Images | None = None,
    attn_mask: Mask | None = None,
) -> Work[tuple[Any]]:
    from darkroom_ipadapter import applying

    if loaded.clip_vision is None:
        raise EngineError("the IP-Adapter lacks its CLIP vision model: connect one to clip_vision")
    layers = applying.layers_for(context.vision.cross_attentions(model), loaded.adapter)
    of_layers = weights.layer_weights(weight_type, weight, layers)
    if not any(each.weight for each in of_layers):
        return (model,)
    encoded = yield from applying.encode_pictures(
        context, loaded.adapter, loaded.clip_vision, image=image, negative=image_negative
    )
    pairs = yield from applying.projected(loaded.adapter, encoded, combine_embeds)
    prompt = applying.prompt_of(layers, pairs, of_layers, embeds_scaling)
    limited = applying.with_mask_and_range(prompt, attn_mask, (start_at, end_at))
    return (context.vision.with_image_prompt(model, limited),)
