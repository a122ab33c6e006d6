"""Nodes that patch the attention layers of a UNet: the result shares its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.errors import EngineError
from engine.graph.cost import Estimate, model_shape
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, node
from engine.graph.models_folder import HYPERNETWORKS
from engine.nodes.model_patches import filtered_estimate

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.model import Model
    from engine.diffusion.patches.hyper_tile import HyperTile
    from engine.diffusion.patches.token_merging import TokenMerging

_LIKENESS = 0.13
"""To compare places with each other, as a share of attention to all of them. Measured on a layer of
SD 1.5 at 512 to 1024 pixels; where that share of the places is merged, it is saved again."""


def _merging_estimate(inputs: Mapping[str, Any]) -> Estimate:
    more = max(0.0, _LIKENESS - inputs["ratio"]) if inputs["ratio"] else 0.0
    model = model_shape(inputs["model"])
    return Estimate((replace(model, more_attention=max(model.more_attention, more)),))


@node(
    "HyperTile",
    inputs={
        "model": Link("MODEL"),
        "tile_size": Int(256, min=1, max=2048, tooltip="The least side of a tile, in pixels."),
        "swap_size": Int(2, min=1, max=128, tooltip="Of so many sizes each call draws one."),
        "max_depth": Int(0, min=0, max=10, tooltip="The levels that are cut, after the largest."),
        "scale_depth": Boolean(False, tooltip="Larger tiles in deeper levels."),
    },
    outputs=("MODEL",),
    category="model_patches/unet",
)
def hyper_tile(
    context: Context,
    *,
    model: Model,
    tile_size: int,
    swap_size: int,
    max_depth: int,
    scale_depth: bool,
) -> tuple[Model]:
    """Lets self-attention see a part of a large image at a time, which is faster."""
    from engine.diffusion.patches.hyper_tile import HyperTile

    settings = HyperTile(tile_size, swap_size, max_depth=max_depth, scale_depth=scale_depth)
    return (_with_fewer(model, settings),)


@node(
    "TomePatchModel",
    inputs={
        "model": Link("MODEL"),
        "ratio": Float(0.3, min=0.0, max=1.0, tooltip="The share of places that are merged."),
    },
    outputs=("MODEL",),
    category="model_patches/unet",
    estimate=_merging_estimate,
)
def tome_patch_model(context: Context, model: Model, ratio: float) -> tuple[Model]:
    """Merges places that are alike before self-attention, which is faster."""
    from engine.diffusion.patches.token_merging import TokenMerging

    return (_with_fewer(model, TokenMerging(ratio)),)


def _with_fewer(model: Model, settings: HyperTile | TokenMerging) -> Model:
    if model.fewer is not None:
        raise EngineError("a model takes one of HyperTile and TomePatchModel, once")
    return replace(model, fewer=settings)


@node(
    "HypernetworkLoader",
    inputs={
        "model": Link("MODEL"),
        "hypernetwork_name": Choice(folder=HYPERNETWORKS, tooltip="The hypernetwork to load."),
        "strength": Float(1.0, min=-10.0, max=10.0, tooltip="How much it changes the model."),
    },
    outputs=("MODEL",),
    category="loaders",
    estimate=filtered_estimate,
)
def hypernetwork_loader(
    context: Context, model: Model, hypernetwork_name: str, strength: float
) -> Work[tuple[Model]]:
    """Changes what the attention layers of a model make their keys and values of."""
    from engine.diffusion.loading.hypernetworks import read_hypernetwork
    from engine.diffusion.patches.hypernetworks import with_hypernetwork

    network = yield from context.model(HYPERNETWORKS, hypernetwork_name, read_hypernetwork)
    return (with_hypernetwork(model, network, strength),)
