"""Nodes that load and apply ControlNets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import (
    ConditioningShape,
    Estimate,
    ImageShape,
    ModelShape,
    model_shape,
    saturated,
)
from engine.graph.declarations import Choice, Float, Link, node
from engine.graph.models_folder import CONTROL_NETS
from engine.nodes.loaders import load_part_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images
    from engine.diffusion.images.vae import Vae
    from engine.diffusion.model import Model

_STRENGTH = Float(1.0, min=0.0, max=10.0, tooltip="The weight of the picture.")


def _diff_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((ModelShape(is_merged=True),), work=work.LOAD_PART)


def _controlled(inputs: Mapping[str, Any], name: str) -> ConditioningShape:
    conditioning: ConditioningShape = inputs[name]
    image: ImageShape = inputs["image"]
    more = replace(
        conditioning,
        controls=saturated(conditioning.controls + 1),
        merged=saturated(conditioning.merged + model_shape(inputs["control_net"]).is_merged),
    )
    return more.holding(image.size_bytes)


def _apply_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((_controlled(inputs, "conditioning"),))


def _apply_to_both_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((_controlled(inputs, "positive"), _controlled(inputs, "negative")))


@node(
    "ControlNetLoader",
    inputs={"control_net_name": Choice(folder=CONTROL_NETS, tooltip="The ControlNet to load.")},
    outputs=("CONTROL_NET",),
    category="loaders",
    display_name="Load ControlNet Model",
    estimate=load_part_estimate,
)
def control_net_loader(context: Context, control_net_name: str) -> Work[tuple[Any]]:
    """Loads a ControlNet, a network that takes a picture in addition to the text."""
    from engine.diffusion.conditioning.control_file import read_control_net

    network = yield from context.model(CONTROL_NETS, control_net_name, read_control_net)
    return (network,)


@node(
    "DiffControlNetLoader",
    inputs={
        "model": Link("MODEL", tooltip="The model from which the file's differences are counted."),
        "control_net_name": Choice(folder=CONTROL_NETS, tooltip="The ControlNet to load."),
    },
    outputs=("CONTROL_NET",),
    category="loaders",
    display_name="Load ControlNet Model (diff)",
    estimate=_diff_estimate,
)
def diff_control_net_loader(
    context: Context, model: Model, control_net_name: str
) -> Work[tuple[Any]]:
    """Loads a ControlNet whose file contains the differences from a model."""
    from engine.diffusion.conditioning.control_file import control_net_on

    read = partial(control_net_on, name=control_net_name, unet=model.unet)
    key = control_net_name, ref(model.unet)
    return ((yield from context.load_once(key, read)),)


@node(
    "ControlNetApply",
    inputs={
        "conditioning": Link("CONDITIONING"),
        "control_net": Link("CONTROL_NET"),
        "image": Link("IMAGE", tooltip="The picture for the network, prepared as in its training."),
        "strength": _STRENGTH,
    },
    outputs=("CONDITIONING",),
    category="conditioning/controlnet",
    display_name="Apply ControlNet (OLD)",
    estimate=_apply_estimate,
)
def control_net_apply(
    context: Context,
    *,
    conditioning: Conditioning,
    control_net: Any,
    image: Images,
    strength: float,
) -> tuple[Conditioning]:
    """Guides a conditioning by a picture, in all steps.

    A negative conditioning without a picture gets that of the positive conditioning.
    """
    from engine.diffusion.conditioning.condition import controlled
    from engine.diffusion.conditioning.control_net import Control

    if strength == 0:
        return (conditioning,)
    return (
        controlled(conditioning, Control(control_net, image, strength, applies_to_uncond=True)),
    )


@node(
    "ControlNetApplyAdvanced",
    inputs={
        "positive": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "control_net": Link("CONTROL_NET"),
        "image": Link("IMAGE", tooltip="The picture for the network, prepared as in its training."),
        "strength": _STRENGTH,
        "start_percent": Float(
            0.0,
            min=0.0,
            max=1.0,
            step=0.001,
            tooltip="The fraction of the timesteps after which it starts.",
        ),
        "end_percent": Float(
            1.0,
            min=0.0,
            max=1.0,
            step=0.001,
            tooltip="The fraction of the timesteps after which it ends.",
        ),
    },
    optional={"vae": Link("VAE", tooltip="Accepted and not used: these models take pixels.")},
    outputs=("CONDITIONING", "CONDITIONING"),
    output_names=("positive", "negative"),
    category="conditioning/controlnet",
    display_name="Apply ControlNet",
    estimate=_apply_to_both_estimate,
)
def control_net_apply_advanced(
    context: Context,
    *,
    positive: Conditioning,
    negative: Conditioning,
    control_net: Any,
    image: Images,
    strength: float,
    start_percent: float,
    end_percent: float,
    vae: Vae | None = None,
) -> tuple[Conditioning, Conditioning]:
    """Guides the conditionings by a picture, in a part of the steps."""
    from engine.diffusion.conditioning.condition import controlled
    from engine.diffusion.conditioning.control_net import Control

    if strength == 0:
        return positive, negative
    control = Control(control_net, image, strength, (start_percent, end_percent))
    return controlled(positive, control), controlled(negative, control)
