"""Nodes that patch a model: the result shares its weights."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.graph.declarations import Boolean, Choice, Float, Link, node

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.model import Model, Prediction

_PREDICTIONS: dict[str, Prediction] = {
    "eps": "epsilon",
    "v_prediction": "v_prediction",
    "lcm": "consistency",
    "x0": "sample",
    "img_to_img": "image_to_image",
}


def _factor(default: float, what: str) -> Float:
    return Float(default, min=0.0, max=10.0, tooltip=f"Factor of {what}.")


def _free_u_inputs(b1: float, b2: float) -> dict[str, Link | Float]:
    return {
        "model": Link("MODEL"),
        "b1": _factor(b1, "the backbone where it is widest"),
        "b2": _factor(b2, "the backbone one level up"),
        "s1": _factor(0.9, "the low frequencies of the skip connections where they are widest"),
        "s2": _factor(0.2, "those one level up"),
    }


@node(
    "FreeU",
    inputs=_free_u_inputs(1.1, 1.2),
    outputs=("MODEL",),
    category="model_patches/unet",
)
def free_u(
    context: Context, *, model: Model, b1: float, b2: float, s1: float, s2: float
) -> tuple[Model]:
    """Gives the UNet's backbone more weight, and its skip connections less."""
    from engine.diffusion.control.free_u import FreeU, with_free_u

    return (with_free_u(model, FreeU(b1, b2, s1, s2)),)


@node(
    "FreeU_V2",
    inputs=_free_u_inputs(1.3, 1.4),
    outputs=("MODEL",),
    category="model_patches/unet",
)
def free_u_v2(
    context: Context, *, model: Model, b1: float, b2: float, s1: float, s2: float
) -> tuple[Model]:
    """Gives the UNet's backbone more weight where its activations are high, and its skips less."""
    from engine.diffusion.control.free_u import FreeU, with_free_u

    return (with_free_u(model, FreeU(b1, b2, s1, s2, follows_mean=True)),)


@node(
    "ModelSamplingDiscrete",
    inputs={
        "model": Link("MODEL"),
        "sampling": Choice(tuple(_PREDICTIONS), tooltip="What the model was trained to predict."),
        "zsnr": Boolean(False, tooltip="Rescales the noise levels to a zero terminal SNR."),
    },
    outputs=("MODEL",),
    category="advanced/model",
)
def model_sampling_discrete(
    context: Context, model: Model, sampling: str, zsnr: bool
) -> tuple[Model]:
    """Sets what the model predicts and which noise levels it was trained on."""
    from engine.diffusion.samplers.noise_levels import stable_diffusion

    prediction = _PREDICTIONS[sampling]
    levels = stable_diffusion(zero_terminal=zsnr, consistency=prediction == "consistency")
    return (replace(model, prediction=prediction, levels=levels),)


@node(
    "RescaleCFG",
    inputs={
        "model": Link("MODEL"),
        "multiplier": Float(
            0.7, min=0.0, max=1.0, tooltip="How much of the added contrast is removed."
        ),
    },
    outputs=("MODEL",),
    category="advanced/model",
)
def rescale_cfg(context: Context, model: Model, multiplier: float) -> tuple[Model]:
    """Reduces the contrast that a high cfg adds."""
    return (replace(model, guidance_rescale=multiplier),)
