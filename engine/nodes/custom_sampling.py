"""Nodes that sample with a guider, sampler, noise and sigmas, each made by a node of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import ConditioningShape, Estimate, GuiderShape, SigmasShape, model_shape
from engine.graph.declarations import Boolean, Choice, Float, Int, Link, node
from engine.nodes.sampling import (
    CFG,
    SAMPLER_INPUT,
    SCHEDULERS,
    SEED,
    STEPS,
    require_schedule,
    sampling_estimate,
    schedule_work,
)

if TYPE_CHECKING:
    from engine.diffusion.conditioning.condition import Conditioning
    from engine.diffusion.context import Context
    from engine.diffusion.images.latents import Latent
    from engine.diffusion.model import Model
    from engine.diffusion.samplers.sigmas import Sigmas
    from engine.diffusion.trajectory import Guider, Noise


DENOISE = Float(
    1.0, min=0.0, max=1.0, tooltip="If below 1, only the end of a longer schedule is used."
)
SIGMA_MAX = Float(14.614642, min=0.0, max=5000.0, tooltip="The sigma to start from.")
SIGMA_MIN = Float(0.0291675, min=0.0, max=5000.0, tooltip="The last sigma above 0.")


def _sampler_estimate(inputs: Mapping[str, Any]) -> Estimate:
    found = sampling_estimate(inputs, inputs["sampler"], inputs["sigmas"].steps)
    return replace(found, shapes=found.shapes * 2)


def _select_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((inputs["sampler_name"],))


def _basic_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((SigmasShape(inputs["steps"]),), work=schedule_work(inputs))


def _schedule_estimate(inputs: Mapping[str, Any]) -> Estimate:
    steps = inputs["steps"]
    return Estimate((SigmasShape(steps),), work=steps * work.SIGMA)


_scheduler = partial(
    node,
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    steps_input="steps",
    estimate=_schedule_estimate,
)


def _split_estimate(inputs: Mapping[str, Any]) -> Estimate:
    steps = inputs["sigmas"].steps
    first = min(inputs["step"], steps)
    return Estimate((SigmasShape(first), SigmasShape(steps - first)))


def _flip_estimate(inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((inputs["sigmas"],))


@node(
    "SamplerCustom",
    inputs={
        "model": Link("MODEL"),
        "add_noise": Boolean(True, tooltip="Off: the latent already contains noise."),
        "noise_seed": SEED,
        "cfg": CFG,
        "positive": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "sampler": Link("SAMPLER"),
        "sigmas": Link("SIGMAS"),
        "latent_image": Link("LATENT"),
    },
    outputs=("LATENT", "LATENT"),
    output_names=("output", "denoised_output"),
    category="sampling/custom_sampling",
    steps_input="sigmas",
    estimate=_sampler_estimate,
)
def sampler_custom(
    context: Context,
    *,
    model: Model,
    add_noise: bool,
    noise_seed: int,
    cfg: float,
    positive: Conditioning,
    negative: Conditioning,
    sampler: str,
    sigmas: Sigmas,
    latent_image: Latent,
) -> Work[tuple[Latent, Latent]]:
    """Denoises a latent along a schedule. The second output is the last estimate without noise."""
    return (
        yield from context.sample(
            model,
            latent_image,
            sampler=sampler,
            sigmas=sigmas.values,
            steps=sigmas.steps,
            seed=noise_seed,
            positive=positive,
            negative=negative,
            cfg=cfg,
            adds_noise=add_noise,
        )
    )


@node(
    "KSamplerSelect",
    inputs={"sampler_name": SAMPLER_INPUT},
    outputs=("SAMPLER",),
    category="sampling/custom_sampling/samplers",
    estimate=_select_estimate,
)
def k_sampler_select(context: Context, sampler_name: str) -> tuple[str]:
    """Chooses a sampler."""
    return (sampler_name,)


@_scheduler(
    "BasicScheduler",
    inputs={
        "model": Link("MODEL"),
        "scheduler": SCHEDULERS,
        "steps": STEPS,
        "denoise": DENOISE,
    },
    estimate=_basic_estimate,
    check=require_schedule,
)
def basic_scheduler(
    context: Context, *, model: Model, scheduler: str, steps: int, denoise: float
) -> tuple[Sigmas]:
    """Makes the named schedule for a model."""
    from engine.diffusion.samplers.sigmas import Sigmas

    return (Sigmas(context.sigmas(model, scheduler, steps, denoise), steps),)


@_scheduler(
    "KarrasScheduler",
    inputs={
        "steps": STEPS,
        "sigma_max": SIGMA_MAX,
        "sigma_min": SIGMA_MIN,
        "rho": Float(7.0, min=0.0, max=100.0, tooltip="A higher value gives more small sigmas."),
    },
)
def karras_scheduler(
    context: Context, *, steps: int, sigma_max: float, sigma_min: float, rho: float
) -> tuple[Sigmas]:
    """Makes a schedule that is evenly spaced in the rho-th root of sigma."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.karras(steps, sigma_max, sigma_min, rho),)


@_scheduler(
    "ExponentialScheduler",
    inputs={"steps": STEPS, "sigma_max": SIGMA_MAX, "sigma_min": SIGMA_MIN},
)
def exponential_scheduler(
    context: Context, steps: int, sigma_max: float, sigma_min: float
) -> tuple[Sigmas]:
    """Makes a schedule with evenly spaced logarithms of sigma."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.exponential(steps, sigma_max, sigma_min),)


@_scheduler(
    "PolyexponentialScheduler",
    inputs={
        "steps": STEPS,
        "sigma_max": SIGMA_MAX,
        "sigma_min": SIGMA_MIN,
        "rho": Float(1.0, min=0.0, max=100.0, tooltip="A higher value gives more small sigmas."),
    },
)
def polyexponential_scheduler(
    context: Context, *, steps: int, sigma_max: float, sigma_min: float, rho: float
) -> tuple[Sigmas]:
    """Makes a schedule whose log sigmas follow a linear ramp to the power of rho."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.polyexponential(steps, sigma_max, sigma_min, rho),)


@_scheduler(
    "SDTurboScheduler",
    inputs={
        "model": Link("MODEL"),
        "steps": Int(1, min=1, max=10, limit="steps"),
        "denoise": DENOISE,
    },
)
def sd_turbo_scheduler(context: Context, model: Model, steps: int, denoise: float) -> tuple[Sigmas]:
    """Makes a schedule of the timesteps that turbo models were trained on."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.turbo(model.levels, steps, denoise),)


@_scheduler(
    "VPScheduler",
    inputs={
        "steps": STEPS,
        "beta_d": Float(19.9, min=0.0, max=5000.0),
        "beta_min": Float(0.1, min=0.0, max=5000.0),
        "eps_s": Float(0.001, min=0.0, max=1.0, step=0.0001),
    },
)
def vp_scheduler(
    context: Context, *, steps: int, beta_d: float, beta_min: float, eps_s: float
) -> tuple[Sigmas]:
    """Makes a schedule that is evenly spaced in the time of a variance-preserving process."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.variance_preserving(steps, beta_d, beta_min, eps_s),)


@node(
    "SplitSigmas",
    inputs={"sigmas": Link("SIGMAS"), "step": Int(0, min=0, max=10_000)},
    outputs=("SIGMAS", "SIGMAS"),
    output_names=("high_sigmas", "low_sigmas"),
    category="sampling/custom_sampling/sigmas",
    steps_input="sigmas",
    estimate=_split_estimate,
)
def split_sigmas(context: Context, sigmas: Sigmas, step: int) -> tuple[Sigmas, Sigmas]:
    """Splits a schedule into two. Both parts contain the sigma at the split."""
    return sigmas.split(step)


@node(
    "FlipSigmas",
    inputs={"sigmas": Link("SIGMAS")},
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/sigmas",
    steps_input="sigmas",
    estimate=_flip_estimate,
)
def flip_sigmas(context: Context, sigmas: Sigmas) -> tuple[Sigmas]:
    """Reverses a schedule, so that a sampler goes from an image to noise."""
    return (sigmas.flipped(),)


def _check_shape(literals: Mapping[str, Any]) -> None:
    if literals["alpha"] == 0 or literals["beta"] == 0:
        raise ValueError("alpha and beta must be above 0")


def _check_ends(literals: Mapping[str, Any]) -> None:
    if literals["sigma_min"] > literals["sigma_max"]:
        raise ValueError("sigma_min must not be above sigma_max")


@_scheduler(
    "BetaSamplingScheduler",
    inputs={
        "model": Link("MODEL"),
        "steps": STEPS,
        "alpha": Float(0.6, min=0.0, max=50.0, tooltip="A lower value gives more small sigmas."),
        "beta": Float(0.6, min=0.0, max=50.0, tooltip="A lower value gives more large sigmas."),
    },
    check=_check_shape,
)
def beta_sampling_scheduler(
    context: Context, *, model: Model, steps: int, alpha: float, beta: float
) -> tuple[Sigmas]:
    """Makes a schedule with sigmas at the quantiles of a beta distribution."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.beta_quantiles(model.levels, steps, alpha, beta),)


@_scheduler(
    "AlignYourStepsScheduler",
    inputs={
        "model_type": Choice(("SD1", "SDXL", "SVD"), tooltip="The family of the model."),
        "steps": Int(10, min=1, max=10_000, limit="steps"),
        "denoise": DENOISE,
    },
)
def align_your_steps_scheduler(
    context: Context, model_type: str, steps: int, denoise: float
) -> tuple[Sigmas]:
    """Makes a schedule whose ten steps were optimized for a family of models."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.aligned(model_type, steps, denoise),)


@_scheduler(
    "LaplaceScheduler",
    inputs={
        "steps": STEPS,
        "sigma_max": SIGMA_MAX,
        "sigma_min": SIGMA_MIN,
        "mu": Float(
            0.0,
            min=-10.0,
            max=10.0,
            step=0.1,
            tooltip="The logarithm of the sigma around which the schedule is densest.",
        ),
        "beta": Float(
            0.5, min=0.0, max=10.0, step=0.1, tooltip="The spread of the sigmas around mu."
        ),
    },
    check=_check_ends,
)
def laplace_scheduler(
    context: Context, *, steps: int, sigma_max: float, sigma_min: float, mu: float, beta: float
) -> tuple[Sigmas]:
    """Makes a schedule whose sigmas are densest around one value."""
    from engine.diffusion.samplers import sigmas

    found = sigmas.laplace(steps, sigma_max=sigma_max, sigma_min=sigma_min, mu=mu, beta=beta)
    return (found,)


_EMPTY = Link("CONDITIONING", tooltip="The conditioning of an empty text.")
_NEG_SCALE = Float(1.0, min=0.0, max=100.0, tooltip="The weight of the negative text.")
_NONE = ConditioningShape(rows=0, tokens=0, texts=0)


def _noise_estimate(_inputs: Mapping[str, Any]) -> Estimate:
    return Estimate((None,))


def _guider_estimate(
    inputs: Mapping[str, Any],
    *,
    positive: str,
    negative: str | None = None,
    third: str | None = None,
    cfg: str | None = None,
) -> Estimate:
    """Return the estimate of a guider. The keyword arguments are names of inputs.

    With a third conditioning, the value of cfg does not matter.
    """
    model = model_shape(inputs["model"])
    if third:
        model = replace(model, third_conditioning=inputs[third])
    return Estimate(
        (
            GuiderShape(
                inputs[positive],
                inputs[negative] if negative else _NONE,
                cfg=inputs[cfg] if cfg else 1.0,
                model=model,
            ),
        )
    )


_guider = partial(node, outputs=("GUIDER",), category="sampling/custom_sampling/guiders")


def _perp_neg_model_estimate(inputs: Mapping[str, Any]) -> Estimate:
    model = model_shape(inputs["model"])
    return Estimate((replace(model, third_conditioning=inputs["empty_conditioning"]),))


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
    """Makes noise from a seed."""
    from engine.diffusion.trajectory import Noise

    return (Noise(noise_seed),)


@node(
    "DisableNoise",
    inputs={},
    outputs=("NOISE",),
    category="sampling/custom_sampling/noise",
    estimate=_noise_estimate,
)
def disable_noise(context: Context) -> tuple[Noise]:
    """Adds no noise, for a latent that already contains noise."""
    from engine.diffusion.trajectory import Noise

    return (Noise(0, is_added=False),)


@_guider(
    "BasicGuider",
    inputs={"model": Link("MODEL"), "conditioning": Link("CONDITIONING")},
    estimate=partial(_guider_estimate, positive="conditioning"),
)
def basic_guider(context: Context, model: Model, conditioning: Conditioning) -> tuple[Guider]:
    """Guides a model by one text, without a negative text."""
    from engine.diffusion.trajectory import Guider

    return (Guider(model, conditioning, negative=(), cfg=1.0),)


@_guider(
    "CFGGuider",
    inputs={
        "model": Link("MODEL"),
        "positive": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "cfg": CFG,
    },
    estimate=partial(_guider_estimate, positive="positive", negative="negative", cfg="cfg"),
)
def cfg_guider(
    context: Context, *, model: Model, positive: Conditioning, negative: Conditioning, cfg: float
) -> tuple[Guider]:
    """Guides a model towards one text and away from another."""
    from engine.diffusion.trajectory import Guider

    return (Guider(model, positive, negative=negative, cfg=cfg),)


@_guider(
    "DualCFGGuider",
    inputs={
        "model": Link("MODEL"),
        "cond1": Link("CONDITIONING"),
        "cond2": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "cfg_conds": CFG,
        "cfg_cond2_negative": CFG,
        "style": Choice(
            ("regular", "nested"),
            tooltip="Nested guidance goes from the negative text to both texts together.",
        ),
    },
    estimate=partial(_guider_estimate, positive="cond1", negative="negative", third="cond2"),
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
    """Guides a model from the negative text to the second text, and then to the first text."""
    from engine.diffusion.conditioning.guidance import DualCfg, ThirdConditioning
    from engine.diffusion.trajectory import Guider

    third_conditioning = ThirdConditioning(cond2, DualCfg(cfg_conds, is_nested=style == "nested"))
    return (
        Guider(
            model,
            cond1,
            negative=negative,
            cfg=cfg_cond2_negative,
            third_conditioning=third_conditioning,
        ),
    )


@_guider(
    "PerpNegGuider",
    inputs={
        "model": Link("MODEL"),
        "positive": Link("CONDITIONING"),
        "negative": Link("CONDITIONING"),
        "empty_conditioning": _EMPTY,
        "cfg": CFG,
        "neg_scale": _NEG_SCALE,
    },
    category="_for_testing",
    estimate=partial(
        _guider_estimate, positive="positive", negative="negative", third="empty_conditioning"
    ),
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
    """Guides a model away from the part of the negative that is perpendicular to the positive."""
    from engine.diffusion.conditioning.guidance import PerpNeg, ThirdConditioning
    from engine.diffusion.trajectory import Guider

    third_conditioning = ThirdConditioning(empty_conditioning, PerpNeg(neg_scale))
    return (
        Guider(model, positive, negative=negative, cfg=cfg, third_conditioning=third_conditioning),
    )


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
    """Adds perpendicular negative guidance to a model. All samplers of that model use it."""
    from engine.diffusion.conditioning.guidance import PerpNeg, ThirdConditioning

    return (
        replace(
            model, third_conditioning=ThirdConditioning(empty_conditioning, PerpNeg(neg_scale))
        ),
    )


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
    """Denoises a latent along a schedule. The second output is the last estimate without noise."""
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
            third=guider.third_conditioning,
        )
    )
