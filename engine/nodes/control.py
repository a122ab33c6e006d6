"""Nodes that load and apply ControlNets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from engine.batcher import Work
from engine.families.control_nets import UNION_TYPES
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
from engine.graph.models_folder import CONTROL_NETS, MODEL_PATCHES
from engine.nodes.loaders import load_part_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.conditioning.control_net import ControlNet
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Images, Mask
    from engine.diffusion.images.vae import Vae
    from engine.diffusion.model import Model

_STRENGTH = Float(1.0, min=0.0, max=10.0, tooltip="The weight of the picture.")
_APPLY_INPUTS = {
    "positive": Link("CONDITIONING"),
    "negative": Link("CONDITIONING"),
    "control_net": Link("CONTROL_NET"),
}
_IMAGE = Link("IMAGE", tooltip="The picture for the network, prepared as in its training.")
_PERCENT_RANGE = {
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
}
_VAE = Link("VAE", tooltip="The VAE of the model. Only ControlNets of Flux.1 use it.")


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
    image: ImageShape = inputs["image"]
    return Estimate(
        (_controlled(inputs, "positive"), _controlled(inputs, "negative")),
        work=image.megapixels * work.ENCODE if "vae" in inputs else 0.0,
    )


def _union_type_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((inputs["control_net"],))


@node(
    "ControlNetLoader",
    inputs={"control_net_name": Choice(folder=CONTROL_NETS, tooltip="The ControlNet to load.")},
    outputs=("CONTROL_NET",),
    category="loaders",
    display_name="Load ControlNet Model",
    estimate=load_part_estimate,
)
def control_net_loader(context: Context, control_net_name: str) -> Work[tuple[ControlNet]]:
    """Loads a ControlNet, a network that takes a picture in addition to the text."""
    from engine.diffusion.conditioning.control_file import read_control_net
    from engine.diffusion.conditioning.control_net import ControlNet

    network = yield from context.model(CONTROL_NETS, control_net_name, read_control_net)
    return (ControlNet(network),)


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
) -> Work[tuple[ControlNet]]:
    """Loads a ControlNet whose file contains the differences from a model."""
    from engine.diffusion.conditioning.control_file import control_net_on
    from engine.diffusion.conditioning.control_net import ControlNet

    read = partial(control_net_on, name=control_net_name, unet=model.unet)
    key = control_net_name, ref(model.unet)
    return (ControlNet((yield from context.load_once(key, read))),)


@node(
    "SetUnionControlNetType",
    inputs={
        "control_net": Link("CONTROL_NET"),
        "type": Choice(("auto", *UNION_TYPES), tooltip="The type of the picture."),
    },
    outputs=("CONTROL_NET",),
    category="conditioning/controlnet",
    estimate=_union_type_estimate,
)
def set_union_control_net_type(
    context: Context, control_net: ControlNet, type: str
) -> tuple[ControlNet]:
    """Tells a union of ControlNets the type of its picture. With auto, it gets no type."""
    return (control_net.with_type(UNION_TYPES.get(type)),)


@node(
    "ControlNetApply",
    inputs={
        "conditioning": Link("CONDITIONING"),
        "control_net": Link("CONTROL_NET"),
        "image": _IMAGE,
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
    control_net: ControlNet,
    image: Images,
    strength: float,
) -> tuple[Conditioning]:
    """Guides a conditioning by a picture, in all steps.

    A negative conditioning without a picture gets that of the positive conditioning.
    """
    from engine.diffusion.conditioning.condition import controlled

    if strength == 0:
        return (conditioning,)
    control = control_net.control(image, strength, applies_to_uncond=True)
    return (controlled(conditioning, control),)


@node(
    "ControlNetApplyAdvanced",
    inputs={**_APPLY_INPUTS, "image": _IMAGE, "strength": _STRENGTH, **_PERCENT_RANGE},
    optional={"vae": _VAE},
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
    control_net: ControlNet,
    image: Images,
    strength: float,
    start_percent: float,
    end_percent: float,
    vae: Vae | None = None,
) -> tuple[Conditioning, Conditioning]:
    """Guides the conditionings by a picture, in a part of the steps."""
    from engine.diffusion.conditioning.condition import controlled

    if strength == 0:
        return positive, negative
    percent_range = start_percent, end_percent
    control = control_net.control(
        image, strength, vae=vae, percent_range=percent_range, on_tiled=context.note_tiled
    )
    return controlled(positive, control), controlled(negative, control)


@node(
    "ControlNetApplySD3",
    inputs={
        **_APPLY_INPUTS,
        "vae": _VAE,
        "image": _IMAGE,
        "strength": _STRENGTH,
        **_PERCENT_RANGE,
    },
    outputs=("CONDITIONING", "CONDITIONING"),
    output_names=("positive", "negative"),
    category="conditioning/controlnet",
    display_name="Apply Controlnet with VAE",
    estimate=_apply_to_both_estimate,
)
def control_net_apply_sd3(context: Context, **inputs: Any) -> tuple[Conditioning, Conditioning]:
    """Guides the conditionings by a picture like ControlNetApplyAdvanced, with a VAE."""
    found: tuple[Conditioning, Conditioning] = control_net_apply_advanced.body(context, **inputs)
    return found


@node(
    "ModelPatchLoader",
    inputs={"name": Choice(folder=MODEL_PATCHES, tooltip="The ControlNet of Z-Image to load.")},
    outputs=("MODEL_PATCH",),
    category="advanced/loaders",
    estimate=load_part_estimate,
)
def model_patch_loader(context: Context, name: str) -> Work[tuple[Any]]:
    """Loads a ControlNet of Z-Image, which is applied to the model."""
    from engine.diffusion.conditioning.control_file import read_model_patch

    return ((yield from context.model(MODEL_PATCHES, name, read_model_patch)),)


_PATCH_INPUTS = {
    "model": Link("MODEL"),
    "model_patch": Link("MODEL_PATCH"),
    "vae": Link("VAE", tooltip="The VAE of the model."),
}
_PATCH_STRENGTH = Float(1.0, min=-10.0, max=10.0, tooltip="The weight of the picture.")
_PAINTED = Link("MASK", tooltip="1 where the picture is painted.")


def _patched_estimate(inputs: Mapping[str, Any]) -> Estimate:
    model = model_shape(inputs["model"])
    images: list[ImageShape] = [
        inputs[name] for name in ("image", "inpaint_image") if name in inputs
    ]
    held = sum(each.size_bytes for each in images)
    patched = replace(model, controls=saturated(model.controls + 1)).holding(held)
    encoded = sum(each.megapixels for each in images)
    return Estimate((patched,), work=2 * encoded * work.ENCODE)


@node(
    "ZImageFunControlnet",
    inputs={**_PATCH_INPUTS, "strength": _PATCH_STRENGTH},
    optional={
        "image": _IMAGE,
        "inpaint_image": Link("IMAGE", tooltip="The picture of which a part is painted."),
        "mask": _PAINTED,
    },
    outputs=("MODEL",),
    category="advanced/loaders/zimage",
    estimate=_patched_estimate,
)
def z_image_fun_controlnet(
    context: Context,
    *,
    model: Model,
    model_patch: Any,
    vae: Vae,
    strength: float,
    image: Images | None = None,
    inpaint_image: Images | None = None,
    mask: Mask | None = None,
) -> tuple[Model]:
    """Guides Z-Image by a picture, in all steps. Some networks also paint a part of a picture."""
    from engine.diffusion.families.z_image_control import z_image_control

    control = z_image_control(
        model_patch,
        vae,
        strength,
        image=image,
        inpaint_image=inpaint_image,
        mask=mask,
        on_tiled=context.note_tiled,
    )
    return (replace(model, controls=(*model.controls, control)),)


@node(
    "QwenImageDiffsynthControlnet",
    inputs={**_PATCH_INPUTS, "image": _IMAGE, "strength": _PATCH_STRENGTH},
    optional={"mask": _PAINTED},
    outputs=("MODEL",),
    category="advanced/loaders/qwen",
    estimate=_patched_estimate,
)
def qwen_image_diffsynth_controlnet(context: Context, **inputs: Any) -> tuple[Model]:
    """Guides Z-Image by a picture, like ZImageFunControlnet. Qwen-Image is not supported."""
    found: tuple[Model] = z_image_fun_controlnet.body(context, **inputs)
    return found
