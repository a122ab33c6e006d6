"""Nodes that choose a sampler, make its schedule and sample along it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engine.batcher import Work
from engine.graph import work
from engine.graph.cost import Estimate, SigmasShape
from engine.graph.declarations import Boolean, Float, Int, Link, node
from engine.nodes.samplers.sampling import (
    CFG,
    SAMPLERS,
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

DENOISE = Float(1.0, min=0.0, max=1.0, tooltip="Below 1: the end of a longer schedule.")
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
        "add_noise": Boolean(True, tooltip="Off: the latent has its noise."),
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
    display_name="SamplerCustom",
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
    """Denoises a latent along given sigmas; the second output is its estimate without noise."""
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
    inputs={"sampler_name": SAMPLERS},
    outputs=("SAMPLER",),
    category="sampling/custom_sampling/samplers",
    display_name="KSamplerSelect",
    estimate=_select_estimate,
)
def k_sampler_select(context: Context, sampler_name: str) -> tuple[str]:
    """Chooses a sampler."""
    return (sampler_name,)


@node(
    "BasicScheduler",
    inputs={
        "model": Link("MODEL"),
        "scheduler": SCHEDULERS,
        "steps": STEPS,
        "denoise": DENOISE,
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    display_name="BasicScheduler",
    steps_input="steps",
    estimate=_basic_estimate,
    check=require_schedule,
)
def basic_scheduler(
    context: Context, *, model: Model, scheduler: str, steps: int, denoise: float
) -> tuple[Sigmas]:
    """The schedule of that name for a model."""
    from engine.diffusion.samplers.sigmas import Sigmas

    return (Sigmas(context.sigmas(model, scheduler, steps, denoise), steps),)


@node(
    "KarrasScheduler",
    inputs={
        "steps": STEPS,
        "sigma_max": SIGMA_MAX,
        "sigma_min": SIGMA_MIN,
        "rho": Float(7.0, min=0.0, max=100.0, tooltip="The higher, the more small sigmas."),
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    display_name="KarrasScheduler",
    steps_input="steps",
    estimate=_schedule_estimate,
)
def karras_scheduler(
    context: Context, *, steps: int, sigma_max: float, sigma_min: float, rho: float
) -> tuple[Sigmas]:
    """Sigmas that are evenly spaced in the rho-th root of sigma."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.karras(steps, sigma_max, sigma_min, rho),)


@node(
    "ExponentialScheduler",
    inputs={"steps": STEPS, "sigma_max": SIGMA_MAX, "sigma_min": SIGMA_MIN},
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    display_name="ExponentialScheduler",
    steps_input="steps",
    estimate=_schedule_estimate,
)
def exponential_scheduler(
    context: Context, steps: int, sigma_max: float, sigma_min: float
) -> tuple[Sigmas]:
    """Sigmas that are evenly spaced in log sigma."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.exponential(steps, sigma_max, sigma_min),)


@node(
    "PolyexponentialScheduler",
    inputs={
        "steps": STEPS,
        "sigma_max": SIGMA_MAX,
        "sigma_min": SIGMA_MIN,
        "rho": Float(1.0, min=0.0, max=100.0, tooltip="The higher, the more small sigmas."),
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    display_name="PolyexponentialScheduler",
    steps_input="steps",
    estimate=_schedule_estimate,
)
def polyexponential_scheduler(
    context: Context, *, steps: int, sigma_max: float, sigma_min: float, rho: float
) -> tuple[Sigmas]:
    """Sigmas along a linear ramp to the power of rho, in log sigma."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.polyexponential(steps, sigma_max, sigma_min, rho),)


@node(
    "SDTurboScheduler",
    inputs={
        "model": Link("MODEL"),
        "steps": Int(1, min=1, max=10, limit="steps"),
        "denoise": DENOISE,
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    display_name="SDTurboScheduler",
    steps_input="steps",
    estimate=_schedule_estimate,
)
def sd_turbo_scheduler(context: Context, model: Model, steps: int, denoise: float) -> tuple[Sigmas]:
    """The sigmas of the timesteps that turbo models were trained for."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.turbo(model.levels, steps, denoise),)


@node(
    "VPScheduler",
    inputs={
        "steps": STEPS,
        "beta_d": Float(19.9, min=0.0, max=5000.0),
        "beta_min": Float(0.1, min=0.0, max=5000.0),
        "eps_s": Float(0.001, min=0.0, max=1.0, step=0.0001),
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    display_name="VPScheduler",
    steps_input="steps",
    estimate=_schedule_estimate,
)
def vp_scheduler(
    context: Context, *, steps: int, beta_d: float, beta_min: float, eps_s: float
) -> tuple[Sigmas]:
    """Sigmas that are evenly spaced in the time of a variance-preserving process."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.variance_preserving(steps, beta_d, beta_min, eps_s),)


@node(
    "SplitSigmas",
    inputs={"sigmas": Link("SIGMAS"), "step": Int(0, min=0, max=10_000)},
    outputs=("SIGMAS", "SIGMAS"),
    output_names=("high_sigmas", "low_sigmas"),
    category="sampling/custom_sampling/sigmas",
    display_name="SplitSigmas",
    steps_input="sigmas",
    estimate=_split_estimate,
)
def split_sigmas(context: Context, sigmas: Sigmas, step: int) -> tuple[Sigmas, Sigmas]:
    """Cuts a schedule in two; both parts have the sigma at the cut."""
    return sigmas.split(step)


@node(
    "FlipSigmas",
    inputs={"sigmas": Link("SIGMAS")},
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/sigmas",
    display_name="FlipSigmas",
    steps_input="sigmas",
    estimate=_flip_estimate,
)
def flip_sigmas(context: Context, sigmas: Sigmas) -> tuple[Sigmas]:
    """Reverses a schedule, to go from an image to noise."""
    return (sigmas.flipped(),)
