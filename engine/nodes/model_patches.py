"""Nodes that change the attention, the guidance or the schedule of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.errors import EngineError
from engine.graph import work
from engine.graph.cost import Estimate, model_shape
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, node
from engine.graph.models_folder import HYPERNETWORKS

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.model import Model, Prediction
    from engine.diffusion.patches.attention_reduction import HyperTile, TokenMerging


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
"""The prediction type and sigma_data (the standard deviation of the data) of each option."""
_RESIZING = ("bicubic", "nearest-exact", "bilinear", "area", "bislerp")


def _percent(default: float, which: str) -> Float:
    tooltip = (
        f"The {which} timestep at which the latent is reduced, as a share of the model's "
        "timesteps: 0 is pure noise."
    )
    return Float(default, min=0.0, max=1.0, step=0.001, tooltip=tooltip)


def _sigma(default: float, tooltip: str) -> Float:
    return Float(default, min=0.0, max=1000.0, step=0.001, tooltip=tooltip)


def _calls_estimate(inputs: Mapping[str, Any], *, more: int) -> Estimate:
    model = model_shape(inputs["model"])
    return Estimate((replace(model, more_calls=model.more_calls + more),))


def filtered_estimate(inputs: Mapping[str, Any]) -> Estimate:
    """Return the estimate for a UNet with layers that are replaced by more costly layers."""
    model = model_shape(inputs["model"])
    return Estimate((replace(model, filters=model.filters + 1),), work=work.LOAD_PART)


def _factor(default: float, what: str) -> Float:
    return Float(default, min=0.0, max=10.0, tooltip=f"The factor of {what}.")


def _free_u_inputs(b1: float, b2: float) -> dict[str, Link | Float]:
    return {
        "model": Link("MODEL"),
        "b1": _factor(b1, "the backbone where it is widest"),
        "b2": _factor(b2, "the backbone one level up"),
        "s1": _factor(0.9, "the low frequencies of the skip connections where they are widest"),
        "s2": _factor(0.2, "the low frequencies of the skip connections one level up"),
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
    """Gives the UNet's backbone more weight and its skip connections less."""
    from engine.diffusion.patches.variants import FreeU, with_free_u

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
    """Like FreeU, but gives the backbone more weight where its activations are high."""
    from engine.diffusion.patches.variants import FreeU, with_free_u

    return (with_free_u(model, FreeU(b1, b2, s1, s2, follows_mean=True)),)


@node(
    "ModelSamplingDiscrete",
    inputs={
        "model": Link("MODEL"),
        "sampling": Choice(
            tuple(_PREDICTIONS), tooltip="The quantity that the model was trained to predict."
        ),
        "zsnr": Boolean(False, tooltip="Rescale the noise levels to a zero terminal SNR."),
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
        "sampling": Choice(
            tuple(_EDM), tooltip="The quantity that the model was trained to predict."
        ),
        "sigma_max": _sigma(120.0, "The sigma to start from."),
        "sigma_min": _sigma(0.002, "The last sigma above 0."),
    },
    outputs=("MODEL",),
    category="advanced/model",
    check=_check_ends,
)
def model_sampling_continuous_edm(
    context: Context, *, model: Model, sampling: str, sigma_max: float, sigma_min: float
) -> tuple[Model]:
    """Sets continuous noise levels, for models that were trained on any sigma in a range."""
    from engine.diffusion.samplers.noise_levels import continuous_levels

    prediction, sigma_data = _EDM[sampling]
    levels = continuous_levels(sigma_max, sigma_min, "log")
    return (replace(model, prediction=prediction, sigma_data=sigma_data, levels=levels),)


@node(
    "ModelSamplingContinuousV",
    inputs={
        "model": Link("MODEL"),
        "sampling": Choice(
            ("v_prediction",), tooltip="The quantity that the model was trained to predict."
        ),
        "sigma_max": _sigma(500.0, "The sigma to start from."),
        "sigma_min": _sigma(0.03, "The last sigma above 0."),
    },
    outputs=("MODEL",),
    category="advanced/model",
    check=_check_ends,
)
def model_sampling_continuous_v(
    context: Context, *, model: Model, sampling: str, sigma_max: float, sigma_min: float
) -> tuple[Model]:
    """Sets continuous noise levels, for models that take the angle of a sigma as their time."""
    from engine.diffusion.samplers.noise_levels import continuous_levels

    levels = continuous_levels(sigma_max, sigma_min, "angle")
    return (replace(model, prediction="v_prediction", sigma_data=1.0, levels=levels),)


@node(
    "RescaleCFG",
    inputs={
        "model": Link("MODEL"),
        "multiplier": Float(
            0.7, min=0.0, max=1.0, tooltip="The share of the added contrast that is removed."
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
        "strength": Float(
            1.0,
            min=0.0,
            max=1.0,
            tooltip="1 uses the grey levels of the mask only as times. 0 blends by the mask in "
            "every step, as without this node. Values between mix both.",
        ),
    },
    outputs=("MODEL",),
    category="_for_testing",
    display_name="Differential Diffusion",
)
def differential_diffusion(context: Context, model: Model, strength: float = 1.0) -> tuple[Model]:
    """Uses the grey levels of a latent's mask as times: lighter positions are sampled earlier."""
    return (replace(model, soft_mask=strength),)


@node(
    "PerturbedAttentionGuidance",
    inputs={
        "model": Link("MODEL"),
        "scale": Float(3.0, min=0.0, max=100.0, tooltip="The strength of the guidance."),
    },
    outputs=("MODEL",),
    category="model_patches/unet",
    estimate=partial(_calls_estimate, more=1),
)
def perturbed_attention_guidance(context: Context, model: Model, scale: float) -> tuple[Model]:
    """Guides away from the model's estimate without self-attention in its middle block."""
    return (replace(model, perturbed_attention=scale),)


@node(
    "SelfAttentionGuidance",
    inputs={
        "model": Link("MODEL"),
        "scale": Float(0.5, min=-2.0, max=5.0, tooltip="The strength of the guidance."),
        "blur_sigma": Float(
            2.0,
            min=0.0,
            max=10.0,
            step=0.1,
            tooltip="The standard deviation of the blur, in cells of a latent.",
        ),
    },
    outputs=("MODEL",),
    category="_for_testing",
    display_name="Self-Attention Guidance",
    # These are two more calls: the negative conditioning, which is computed for every cfg, and the
    # blurred image.
    estimate=partial(_calls_estimate, more=2),
)
def self_attention_guidance(
    context: Context, model: Model, scale: float, blur_sigma: float
) -> tuple[Model]:
    """Guides away from the model's estimate for a picture that is blurred where the model attends
    most.
    """
    from engine.diffusion.patches.self_guidance import SelfAttention

    return (replace(model, self_attention=SelfAttention(scale, blur_sigma)),)


@node(
    "PatchModelAddDownscale",
    inputs={
        "model": Link("MODEL"),
        "block_number": Int(
            3, min=1, max=32, tooltip="The block after which the latent is reduced."
        ),
        "downscale_factor": Float(2.0, min=1.0, max=9.0, step=0.001),
        "start_percent": _percent(0.0, "first"),
        "end_percent": _percent(0.35, "last"),
        "downscale_after_skip": Boolean(
            True, tooltip="Off: the skip connection is reduced as well."
        ),
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
    """Reduces the latent inside a UNet in the first steps, which improves large images."""
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


_LIKENESS = 0.13
"""The cost of comparing positions with each other, as a share of the cost of attention to all
positions. Merging this share of the positions saves the same cost. The value was measured on a
layer of SD 1.5 at 512 to 1024 pixels."""


def _merging_estimate(inputs: Mapping[str, Any]) -> Estimate:
    more = max(0.0, _LIKENESS - inputs["ratio"]) if inputs["ratio"] else 0.0
    model = model_shape(inputs["model"])
    return Estimate((replace(model, more_attention=max(model.more_attention, more)),))


@node(
    "HyperTile",
    inputs={
        "model": Link("MODEL"),
        "tile_size": Int(256, min=1, max=2048, tooltip="The smallest side of a tile, in pixels."),
        "swap_size": Int(
            2, min=1, max=128, tooltip="The number of tile sizes from which each call draws one."
        ),
        "max_depth": Int(
            0,
            min=0,
            max=10,
            tooltip="The number of further levels, after the largest, that are split.",
        ),
        "scale_depth": Boolean(False, tooltip="Use larger tiles in deeper levels."),
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
    """Splits self-attention into tiles of the image, which is faster for large images."""
    from engine.diffusion.patches.attention_reduction import HyperTile

    settings = HyperTile(tile_size, swap_size, max_depth=max_depth, scale_depth=scale_depth)
    return (_with_fewer(model, settings),)


@node(
    "TomePatchModel",
    inputs={
        "model": Link("MODEL"),
        "ratio": Float(0.3, min=0.0, max=1.0, tooltip="The share of positions that are merged."),
    },
    outputs=("MODEL",),
    category="model_patches/unet",
    estimate=_merging_estimate,
)
def tome_patch_model(context: Context, model: Model, ratio: float) -> tuple[Model]:
    """Merges similar positions before self-attention, which is faster."""
    from engine.diffusion.patches.attention_reduction import TokenMerging

    return (_with_fewer(model, TokenMerging(ratio)),)


def _with_fewer(model: Model, settings: HyperTile | TokenMerging) -> Model:
    if model.attention_reduction is not None:
        raise EngineError("a model can have HyperTile or TomePatchModel, and only one of them")
    return replace(model, attention_reduction=settings)


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
    """Changes the keys and values of a model's attention layers by a hypernetwork."""
    from engine.diffusion.patches.hypernetworks import read_hypernetwork, with_hypernetwork

    network = yield from context.model(HYPERNETWORKS, hypernetwork_name, read_hypernetwork)
    return (with_hypernetwork(model, network, strength),)
