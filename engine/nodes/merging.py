"""Nodes that make a model, or its text encoders, of two others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, ModelShape
from engine.graph.declarations import Body, Float, Link, NodeType, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.loading.mixing import Shares
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip

_MODELS = {"model1": Link("MODEL"), "model2": Link("MODEL")}
_CLIPS = {"clip1": Link("CLIP"), "clip2": Link("CLIP")}
_SHARE = Float(1.0, min=0.0, max=1.0, tooltip="The share of the first; the rest is the second.")
_MULTIPLIER = Float(1.0, min=-10.0, max=10.0, tooltip="Of both, and so of their difference.")
_OF_SINGLE_FILES = {
    "ModelMergeSD1": (".", 12),
    "ModelMergeSD2": (".", 12),
    "ModelMergeSDXL": ("", 9),
}
"""How the names of a node's inputs end, and how many blocks encoder and decoder have."""


def _merged_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((ModelShape(is_merged=True),), work=work.LOAD)


def _mixed(
    context: Context, first: Model, second: Model, shares: Mapping[str, Shares]
) -> Work[tuple[Model]]:
    from engine.diffusion.loading import mixing

    mix = mixing.Mix(tuple(shares.items()))
    key = mixing.mix_key(mixing.unet_key(first), mixing.unet_key(second), mix)
    make = partial(mixing.mixed_unet, first=first, second=second, mix=mix)
    unet = yield from context.made(key, make)
    return (replace(first, unet=unet, adapters=()),)


def _mixed_clips(
    context: Context, first: Clip, second: Clip, shares: Mapping[str, Shares]
) -> Work[tuple[Clip]]:
    from engine.diffusion.loading import mixing

    mix = mixing.Mix(tuple(shares.items()))
    key = mixing.mix_key(mixing.clip_key(first), mixing.clip_key(second), mix)
    make = partial(mixing.mixed_encoders, first=first, second=second, mix=mix)
    encoders = yield from context.made(key, make)
    return (replace(first, encoders=encoders),)


def _all(of_first: float, of_second: float) -> dict[str, Shares]:
    return {"": (of_first, of_second)}


@node(
    "ModelMergeSimple",
    inputs={**_MODELS, "ratio": _SHARE},
    outputs=("MODEL",),
    category="advanced/model_merging",
    display_name="ModelMergeSimple",
    estimate=_merged_estimate,
)
def model_merge_simple(
    context: Context, model1: Model, model2: Model, ratio: float
) -> Work[tuple[Model]]:
    """The mean of two models."""
    return _mixed(context, model1, model2, _all(ratio, 1.0 - ratio))


@node(
    "ModelMergeAdd",
    inputs=_MODELS,
    outputs=("MODEL",),
    category="advanced/model_merging",
    display_name="ModelMergeAdd",
    estimate=_merged_estimate,
)
def model_merge_add(context: Context, model1: Model, model2: Model) -> Work[tuple[Model]]:
    """The sum of two models, of which one is a difference."""
    return _mixed(context, model1, model2, _all(1.0, 1.0))


@node(
    "ModelMergeSubtract",
    inputs={**_MODELS, "multiplier": _MULTIPLIER},
    outputs=("MODEL",),
    category="advanced/model_merging",
    display_name="ModelMergeSubtract",
    estimate=_merged_estimate,
)
def model_merge_subtract(
    context: Context, model1: Model, model2: Model, multiplier: float
) -> Work[tuple[Model]]:
    """The difference of two models, to be added to a third one."""
    return _mixed(context, model1, model2, _all(multiplier, -multiplier))


@node(
    "ModelMergeBlocks",
    inputs={**_MODELS, "input": _SHARE, "middle": _SHARE, "out": _SHARE},
    outputs=("MODEL",),
    category="advanced/model_merging",
    display_name="ModelMergeBlocks",
    estimate=_merged_estimate,
)
def model_merge_blocks(
    context: Context, model1: Model, model2: Model, **shares: float
) -> Work[tuple[Model]]:
    """The mean of two models, with shares of their own for the parts of the UNet."""
    # What belongs to no part, such as the embedding of the time, is shared as the encoder is.
    parts = {"": shares["input"], **shares} if "input" in shares else shares
    mix = {prefix: (share, 1.0 - share) for prefix, share in parts.items()}
    return _mixed(context, model1, model2, mix)


def _names_of(dot: str, blocks: int) -> Iterable[str]:
    yield from ("time_embed.", "label_emb.")
    yield from (f"input_blocks.{number}{dot}" for number in range(blocks))
    yield from (f"middle_block.{number}{dot}" for number in range(3))
    yield from (f"output_blocks.{number}{dot}" for number in range(blocks))
    yield "out."


def _merge_of_family(class_type: str) -> NodeType:
    shares = dict.fromkeys(_names_of(*_OF_SINGLE_FILES[class_type]), _SHARE)
    declare = node(
        class_type,
        inputs={**_MODELS, **shares},
        outputs=("MODEL",),
        category="advanced/model_merging/model_specific",
        display_name=class_type,
        estimate=_merged_estimate,
    )
    body: Body = model_merge_blocks.body
    return declare(body)


model_merge_sd1, model_merge_sd2, model_merge_sdxl = map(_merge_of_family, _OF_SINGLE_FILES)


@node(
    "CLIPMergeSimple",
    inputs={**_CLIPS, "ratio": _SHARE},
    outputs=("CLIP",),
    category="advanced/model_merging",
    display_name="CLIPMergeSimple",
    estimate=_merged_estimate,
)
def clip_merge_simple(
    context: Context, clip1: Clip, clip2: Clip, ratio: float
) -> Work[tuple[Clip]]:
    """The mean of two text encoders."""
    return _mixed_clips(context, clip1, clip2, _all(ratio, 1.0 - ratio))


@node(
    "CLIPMergeAdd",
    inputs=_CLIPS,
    outputs=("CLIP",),
    category="advanced/model_merging",
    display_name="CLIPMergeAdd",
    estimate=_merged_estimate,
)
def clip_merge_add(context: Context, clip1: Clip, clip2: Clip) -> Work[tuple[Clip]]:
    """The sum of two text encoders, of which one is a difference."""
    return _mixed_clips(context, clip1, clip2, _all(1.0, 1.0))


@node(
    "CLIPMergeSubtract",
    inputs={**_CLIPS, "multiplier": _MULTIPLIER},
    outputs=("CLIP",),
    category="advanced/model_merging",
    display_name="CLIPMergeSubtract",
    estimate=_merged_estimate,
)
def clip_merge_subtract(
    context: Context, clip1: Clip, clip2: Clip, multiplier: float
) -> Work[tuple[Clip]]:
    """The difference of two text encoders, to be added to a third one."""
    return _mixed_clips(context, clip1, clip2, _all(multiplier, -multiplier))
