"""Nodes that put a sampler together from noise, guidance, schedule and latent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph.cost import ConditioningShape, Estimate, GuiderShape, model_shape
from engine.graph.declarations import Choice, Float, Link, node
from engine.nodes.samplers.sampling import CFG, SEED, sampling_estimate

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.guider import Guider, Noise
    from engine.diffusion.images.latents import Latent
    from engine.diffusion.model import Model
    from engine.diffusion.samplers.sigmas import Sigmas

_EMPTY = Link("CONDITIONING", tooltip="That of an empty text.")
_NEG_SCALE = Float(1.0, min=0.0, max=100.0, tooltip="How much the negative counts.")
_NONE = ConditioningShape(rows=0, tokens=0, texts=0)


def _noise_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((None,))


def _guided_estimate(
    inputs: Mapping[str, Any],
    *,
    positive: str,
    negative: str | None = None,
    third: str | None = None,
    cfg: float = 1.0,
) -> Estimate:
    """A guider by the conditionings of those inputs."""
    model = model_shape(inputs["model"])
    if third:
        model = replace(model, third=inputs[third])
    away = inputs[negative] if negative else _NONE
    return Estimate((GuiderShape(inputs[positive], away, cfg=cfg, model=model),))


def _basic_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _guided_estimate(inputs, positive="conditioning")


def _cfg_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _guided_estimate(inputs, positive="positive", negative="negative", cfg=inputs["cfg"])


def _dual_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _guided_estimate(inputs, positive="cond1", negative="negative", third="cond2")


def _perp_neg_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return _guided_estimate(
        inputs, positive="positive", negative="negative", third="empty_conditioning"
    )


def _perp_neg_model_estimate(inputs: Mapping[str, Any]) -> Estimate:
    model = model_shape(inputs["model"])
    return Estimate((replace(model, third=inputs["empty_conditioning"]),))


def _advanced_estimate(inputs: Mapping[str, Any]) -> Estimate:
    guider: GuiderShape = inputs["guider"]
    guided = {
        "model": guider.model,
        "positive": guider.positive,
        "negative": guider.negative,
        "cfg": guider.cfg,
        "latent_image": inputs["latent_image"],
    }
    found = sampling_estimate(guided, inputs["sampler"], inputs["sigmas"].steps)
    return replace(found, shapes=found.shapes * 2)


@node(
    "RandomNoise",
    inputs={"noise_seed": SEED},
    outputs=("NOISE",),
    category="sampling/custom_sampling/noise",
    estimate=_noise_estimate,
)
def random_noise(context: Context, noise_seed: int) -> tuple[Noise]:
    """Noise that a seed makes."""
    from engine.diffusion.guider import Noise

    return (Noise(noise_seed),)


@node(
    "DisableNoise",
    inputs={},
    outputs=("NOISE",),
    category="sampling/custom_sampling/noise",
    estimate=_noise_estimate,
)
def disable_noise(context: Context) -> tuple[Noise]:
    """No noise, for a latent that has its own."""
    from engine.diffusion.guider import Noise

    return (Noise(0, is_added=False),)


@node(
    "BasicGuider",
    inputs={"model": Link("MODEL"), "conditioning": Link("CONDITIONING")},
    outputs=("GUIDER",),
    category="sampling/custom_sampling/guiders",
    estimate=_basic_estimate,
)
def basic_guider(context: Context, model: Model, conditioning: Conditioning) -> tuple[Guider]:
    """Guides a model by a text alone."""
    from engine.diffusion.guider import Guider

    return (Guider(model, conditioning, negative=(), cfg=1.0),)


@node(
    "CFGGuider",
    inputs={
        "model": Link("MODEL"),
        "positive": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "cfg": CFG,
    },
    outputs=("GUIDER",),
    category="sampling/custom_sampling/guiders",
    estimate=_cfg_estimate,
)
def cfg_guider(
    context: Context, *, model: Model, positive: Conditioning, negative: Conditioning, cfg: float
) -> tuple[Guider]:
    """Guides a model towards one text and away from another."""
    from engine.diffusion.guider import Guider

    return (Guider(model, positive, negative=negative, cfg=cfg),)


@node(
    "DualCFGGuider",
    inputs={
        "model": Link("MODEL"),
        "cond1": Link("CONDITIONING"),
        "cond2": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "cfg_conds": CFG,
        "cfg_cond2_negative": CFG,
        "style": Choice(("regular", "nested"), tooltip="Nested: from the negative to both."),
    },
    outputs=("GUIDER",),
    category="sampling/custom_sampling/guiders",
    estimate=_dual_estimate,
)
def dual_cfg_guider(
    context: Context,
    *,
    model: Model,
    cond1: Conditioning,
    cond2: Conditioning,
    negative: Conditioning,
    cfg_conds: float,
    cfg_cond2_negative: float,
    style: str,
) -> tuple[Guider]:
    """Guides a model to one text from a second one, and to that from the negative."""
    from engine.diffusion.conditioning.guidance_rules import DualCfg, Third
    from engine.diffusion.guider import Guider

    third = Third(cond2, DualCfg(cfg_conds, is_nested=style == "nested"))
    return (Guider(model, cond1, negative=negative, cfg=cfg_cond2_negative, third=third),)


@node(
    "PerpNegGuider",
    inputs={
        "model": Link("MODEL"),
        "positive": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "empty_conditioning": _EMPTY,
        "cfg": CFG,
        "neg_scale": _NEG_SCALE,
    },
    outputs=("GUIDER",),
    category="_for_testing",
    estimate=_perp_neg_estimate,
)
def perp_neg_guider(
    context: Context,
    *,
    model: Model,
    positive: Conditioning,
    negative: Conditioning,
    empty_conditioning: Conditioning,
    cfg: float,
    neg_scale: float,
) -> tuple[Guider]:
    """Guides a model away from what of the negative is not in the positive text as well."""
    from engine.diffusion.conditioning.guidance_rules import PerpNeg, Third
    from engine.diffusion.guider import Guider

    third = Third(empty_conditioning, PerpNeg(neg_scale))
    return (Guider(model, positive, negative=negative, cfg=cfg, third=third),)


@node(
    "PerpNeg",
    inputs={"model": Link("MODEL"), "empty_conditioning": _EMPTY, "neg_scale": _NEG_SCALE},
    outputs=("MODEL",),
    category="_for_testing",
    display_name="Perp-Neg (DEPRECATED by PerpNegGuider)",
    estimate=_perp_neg_model_estimate,
)
def perp_neg(
    context: Context, *, model: Model, empty_conditioning: Conditioning, neg_scale: float
) -> tuple[Model]:
    """The same, in the model: every sampler that gets it guides so."""
    from engine.diffusion.conditioning.guidance_rules import PerpNeg, Third

    return (replace(model, third=Third(empty_conditioning, PerpNeg(neg_scale))),)


@node(
    "SamplerCustomAdvanced",
    inputs={
        "noise": Link("NOISE"),
        "guider": Link("GUIDER"),
        "sampler": Link("SAMPLER"),
        "sigmas": Link("SIGMAS"),
        "latent_image": Link("LATENT"),
    },
    outputs=("LATENT", "LATENT"),
    output_names=("output", "denoised_output"),
    category="sampling/custom_sampling",
    steps_input="sigmas",
    estimate=_advanced_estimate,
)
def sampler_custom_advanced(
    context: Context,
    *,
    noise: Noise,
    guider: Guider,
    sampler: str,
    sigmas: Sigmas,
    latent_image: Latent,
) -> Work[tuple[Latent, Latent]]:
    """Denoises a latent along given sigmas; the second output is its estimate without noise."""
    return (
        yield from context.sample(
            guider.model,
            latent_image,
            sampler=sampler,
            sigmas=sigmas.values,
            steps=sigmas.steps,
            seed=noise.seed,
            positive=guider.positive,
            negative=guider.negative,
            cfg=guider.cfg,
            adds_noise=noise.is_added,
            third=guider.third,
        )
    )
