"""Nodes that patch a model: the result shares its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import Estimate, model_shape
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, node

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


_EDM: dict[str, tuple[Prediction, float]] = {
    "v_prediction": ("v_prediction", 1.0),
    "edm": ("edm", 0.5),
    "eps": ("epsilon", 1.0),
}
"""What is predicted, and the sigma of the data."""
_RESIZING = ("bicubic", "nearest-exact", "bilinear", "area", "bislerp")


def _percent(default: float, which: str) -> Float:
    tooltip = f"The {which} of its timesteps, where 0 is all noise."
    return Float(default, min=0.0, max=1.0, step=0.001, tooltip=tooltip)


def _sigma(default: float, tooltip: str) -> Float:
    return Float(default, min=0.0, max=1000.0, step=0.001, tooltip=tooltip)


def _more_calls(inputs: Mapping[str, Any], count: int) -> Estimate:
    model = model_shape(inputs["model"])
    return Estimate((replace(model, more_calls=model.more_calls + count),))


def _perturbed_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _more_calls(inputs, 1)


def _self_attention_estimate(inputs: Mapping[str, Any]) -> Estimate:
    # The negative is asked for whatever the cfg, and then once more.
    return _more_calls(inputs, 2)


def filtered_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """That of a UNet with layers of its own, which do more than those that they stand for."""
    model = model_shape(inputs["model"])
    return Estimate((replace(model, filters=model.filters + 1),), work=work.LOAD_PART)


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
    estimate=filtered_estimate,
)
def free_u(
    context: Context, *, model: Model, b1: float, b2: float, s1: float, s2: float
) -> tuple[Model]:
    """Gives the UNet's backbone more weight, and its skip connections less."""
    from engine.diffusion.patches.free_u import FreeU, with_free_u

    return (with_free_u(model, FreeU(b1, b2, s1, s2)),)


@node(
    "FreeU_V2",
    inputs=_free_u_inputs(1.3, 1.4),
    outputs=("MODEL",),
    category="model_patches/unet",
    estimate=filtered_estimate,
)
def free_u_v2(
    context: Context, *, model: Model, b1: float, b2: float, s1: float, s2: float
) -> tuple[Model]:
    """Gives the UNet's backbone more weight where its activations are high, and its skips less."""
    from engine.diffusion.patches.free_u import FreeU, with_free_u

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
    return (replace(model, prediction=prediction, sigma_data=1.0, levels=levels),)


def _check_ends(literals: Mapping[str, Any]) -> None:
    if not 0 < literals["sigma_min"] < literals["sigma_max"]:
        raise ValueError("sigma_min must be above 0 and below sigma_max")


@node(
    "ModelSamplingContinuousEDM",
    inputs={
        "model": Link("MODEL"),
        "sampling": Choice(tuple(_EDM), tooltip="What the model was trained to predict."),
        "sigma_max": _sigma(120.0, "The sigma to start from."),
        "sigma_min": _sigma(0.002, "The last sigma above 0."),
    },
    outputs=("MODEL",),
    category="advanced/model",
    display_name="ModelSamplingContinuousEDM",
    check=_check_ends,
)
def model_sampling_continuous_edm(
    context: Context, *, model: Model, sampling: str, sigma_max: float, sigma_min: float
) -> tuple[Model]:
    """Sets noise levels of any sigma in a range, for models that were trained on such."""
    from engine.diffusion.samplers.continuous_levels import continuous_levels

    prediction, sigma_data = _EDM[sampling]
    levels = continuous_levels(sigma_max, sigma_min, "log")
    return (replace(model, prediction=prediction, sigma_data=sigma_data, levels=levels),)


@node(
    "ModelSamplingContinuousV",
    inputs={
        "model": Link("MODEL"),
        "sampling": Choice(("v_prediction",), tooltip="What the model was trained to predict."),
        "sigma_max": _sigma(500.0, "The sigma to start from."),
        "sigma_min": _sigma(0.03, "The last sigma above 0."),
    },
    outputs=("MODEL",),
    category="advanced/model",
    display_name="ModelSamplingContinuousV",
    check=_check_ends,
)
def model_sampling_continuous_v(
    context: Context, *, model: Model, sampling: str, sigma_max: float, sigma_min: float
) -> tuple[Model]:
    """The same for models that are told the angle of a sigma."""
    from engine.diffusion.samplers.continuous_levels import continuous_levels

    levels = continuous_levels(sigma_max, sigma_min, "angle")
    return (replace(model, prediction="v_prediction", sigma_data=1.0, levels=levels),)


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


@node(
    "DifferentialDiffusion",
    inputs={"model": Link("MODEL")},
    optional={
        "strength": Float(1.0, min=0.0, max=1.0, tooltip="The rest is the mask as it is."),
    },
    outputs=("MODEL",),
    category="_for_testing",
    display_name="Differential Diffusion",
)
def differential_diffusion(context: Context, model: Model, strength: float = 1.0) -> tuple[Model]:
    """Lets the greys of a latent's mask say from which step on a place is sampled."""
    return (replace(model, soft_mask=strength),)


@node(
    "PerturbedAttentionGuidance",
    inputs={
        "model": Link("MODEL"),
        "scale": Float(3.0, min=0.0, max=100.0, tooltip="How much it guides."),
    },
    outputs=("MODEL",),
    category="model_patches/unet",
    estimate=_perturbed_estimate,
)
def perturbed_attention_guidance(context: Context, model: Model, scale: float) -> tuple[Model]:
    """Guides away from what the model makes without self-attention in its middle."""
    return (replace(model, perturbed_attention=scale),)


@node(
    "SelfAttentionGuidance",
    inputs={
        "model": Link("MODEL"),
        "scale": Float(0.5, min=-2.0, max=5.0, tooltip="How much it guides."),
        "blur_sigma": Float(2.0, min=0.0, max=10.0, step=0.1, tooltip="In cells of a latent."),
    },
    outputs=("MODEL",),
    category="_for_testing",
    display_name="Self-Attention Guidance",
    estimate=_self_attention_estimate,
)
def self_attention_guidance(
    context: Context, model: Model, scale: float, blur_sigma: float
) -> tuple[Model]:
    """Guides away from what the model makes of a picture that is blurred where it looks most."""
    from engine.diffusion.patches.self_guidance import SelfAttention

    return (replace(model, self_attention=SelfAttention(scale, blur_sigma)),)


@node(
    "PatchModelAddDownscale",
    inputs={
        "model": Link("MODEL"),
        "block_number": Int(3, min=1, max=32, tooltip="The block to make the latent smaller in."),
        "downscale_factor": Float(2.0, min=1.0, max=9.0, step=0.001),
        "start_percent": _percent(0.0, "first"),
        "end_percent": _percent(0.35, "last"),
        "downscale_after_skip": Boolean(True, tooltip="Off: the skip is made smaller as well."),
        "downscale_method": Choice(_RESIZING),
        "upscale_method": Choice(_RESIZING),
    },
    outputs=("MODEL",),
    category="model_patches/unet",
    display_name="PatchModelAddDownscale (Kohya Deep Shrink)",
)
def patch_model_add_downscale(
    context: Context,
    *,
    model: Model,
    block_number: int,
    downscale_factor: float,
    start_percent: float,
    end_percent: float,
    downscale_after_skip: bool,
    downscale_method: str,
    upscale_method: str,
) -> tuple[Model]:
    """Makes what a UNet works on smaller in the first steps, for large images."""
    from engine.diffusion.patches.deep_shrink import DeepShrink

    shrink = DeepShrink(
        (start_percent, end_percent),
        block_number,
        downscale_factor,
        after_skip=downscale_after_skip,
        down=downscale_method,
        up=upscale_method,
    )
    return (replace(model, shrink=shrink),)
