"""Nodes that merge two models, or the text encoders of two models."""

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
    from engine.diffusion.loading.model_merging import Shares
    from engine.diffusion.model import Model
    from engine.diffusion.text.encoding import Clip

_MODELS = {"model1": Link("MODEL"), "model2": Link("MODEL")}
_CLIPS = {"clip1": Link("CLIP"), "clip2": Link("CLIP")}
_SHARE = Float(1.0, min=0.0, max=1.0, tooltip="The share of the first; the second has the rest.")
_MULTIPLIER = Float(1.0, min=-10.0, max=10.0, tooltip="The factor of the difference.")
_BLOCKS_OF_NODES = {
    "ModelMergeSD1": (".", 12),
    "ModelMergeSD2": (".", 12),
    "ModelMergeSDXL": ("", 9),
}
"""For each node: the text after the number of a block in the names of inputs, and the number of
blocks in the encoder and in the decoder.
"""


def _merged_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((ModelShape(is_merged=True),), work=work.LOAD)


_merge = partial(node, category="advanced/model_merging", estimate=_merged_estimate)
_model_merge = partial(_merge, outputs=("MODEL",))
_clip_merge = partial(_merge, outputs=("CLIP",))


def _mixed(
    context: Context, first: Model, second: Model, shares: Mapping[str, Shares]
) -> Work[tuple[Model]]:
    from engine.diffusion.loading import model_merging

    mix = model_merging.Mix(tuple(shares.items()))
    key = model_merging.mix_key(model_merging.unet_key(first), model_merging.unet_key(second), mix)
    make = partial(model_merging.mixed_unet, first=first, second=second, mix=mix)
    unet = yield from context.load_once(key, make)
    return (replace(first, unet=unet, adapters=()),)


def _mixed_clips(
    context: Context, first: Clip, second: Clip, shares: Mapping[str, Shares]
) -> Work[tuple[Clip]]:
    from engine.diffusion.loading import model_merging

    mix = model_merging.Mix(tuple(shares.items()))
    key = model_merging.mix_key(model_merging.clip_key(first), model_merging.clip_key(second), mix)
    make = partial(model_merging.mixed_encoders, first=first, second=second, mix=mix)
    encoders = yield from context.load_once(key, make)
    return (replace(first, encoders=encoders),)


def _all(of_first: float, of_second: float) -> dict[str, Shares]:
    return {"": (of_first, of_second)}


@_model_merge(
    "ModelMergeSimple",
    inputs={**_MODELS, "ratio": _SHARE},
)
def model_merge_simple(
    context: Context, model1: Model, model2: Model, ratio: float
) -> Work[tuple[Model]]:
    """Computes the weighted mean of two models."""
    return _mixed(context, model1, model2, _all(ratio, 1.0 - ratio))


@_model_merge(
    "ModelMergeAdd",
    inputs=_MODELS,
)
def model_merge_add(context: Context, model1: Model, model2: Model) -> Work[tuple[Model]]:
    """Adds two models, of which one is a difference."""
    return _mixed(context, model1, model2, _all(1.0, 1.0))


@_model_merge(
    "ModelMergeSubtract",
    inputs={**_MODELS, "multiplier": _MULTIPLIER},
)
def model_merge_subtract(
    context: Context, model1: Model, model2: Model, multiplier: float
) -> Work[tuple[Model]]:
    """Subtracts the second model from the first. The difference can be added to a third one."""
    return _mixed(context, model1, model2, _all(multiplier, -multiplier))


@_model_merge(
    "ModelMergeBlocks",
    inputs={**_MODELS, "input": _SHARE, "middle": _SHARE, "out": _SHARE},
)
def model_merge_blocks(
    context: Context, model1: Model, model2: Model, **shares: float
) -> Work[tuple[Model]]:
    """Computes the weighted mean of two models, with a weight for each part of the UNet."""
    # Weights that belong to no part, such as the time embedding, get the share of the encoder.
    parts = {"": shares["input"], **shares} if "input" in shares else shares
    mix = {prefix: (share, 1.0 - share) for prefix, share in parts.items()}
    return _mixed(context, model1, model2, mix)


def _weight_prefixes(dot: str, blocks: int) -> Iterable[str]:
    yield from ("time_embed.", "label_emb.")
    yield from (f"input_blocks.{number}{dot}" for number in range(blocks))
    yield from (f"middle_block.{number}{dot}" for number in range(3))
    yield from (f"output_blocks.{number}{dot}" for number in range(blocks))
    yield "out."


def _merge_of_family(class_type: str) -> NodeType:
    shares = dict.fromkeys(_weight_prefixes(*_BLOCKS_OF_NODES[class_type]), _SHARE)
    declare = _model_merge(
        class_type,
        inputs={**_MODELS, **shares},
        category="advanced/model_merging/model_specific",
    )
    body: Body = model_merge_blocks.body
    return declare(body)


model_merge_sd1, model_merge_sd2, model_merge_sdxl = map(_merge_of_family, _BLOCKS_OF_NODES)


@_clip_merge(
    "CLIPMergeSimple",
    inputs={**_CLIPS, "ratio": _SHARE},
)
def clip_merge_simple(
    context: Context, clip1: Clip, clip2: Clip, ratio: float
) -> Work[tuple[Clip]]:
    """Computes the weighted mean of two text encoders."""
    return _mixed_clips(context, clip1, clip2, _all(ratio, 1.0 - ratio))


@_clip_merge(
    "CLIPMergeAdd",
    inputs=_CLIPS,
)
def clip_merge_add(context: Context, clip1: Clip, clip2: Clip) -> Work[tuple[Clip]]:
    """Adds two text encoders, of which one is a difference."""
    return _mixed_clips(context, clip1, clip2, _all(1.0, 1.0))


@_clip_merge(
    "CLIPMergeSubtract",
    inputs={**_CLIPS, "multiplier": _MULTIPLIER},
)
def clip_merge_subtract(
    context: Context, clip1: Clip, clip2: Clip, multiplier: float
) -> Work[tuple[Clip]]:
    """Subtracts the second text encoder from the first. The difference can be added to a third
    one.
    """
    return _mixed_clips(context, clip1, clip2, _all(multiplier, -multiplier))
