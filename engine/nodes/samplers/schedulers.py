"""Nodes that make schedules for a model by other rules than their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from engine.graph import work
from engine.graph.cost import Estimate, SigmasShape
from engine.graph.declarations import Choice, Float, Int, Link, node
from engine.nodes.samplers.custom_sampling import DENOISE, SIGMA_MAX, SIGMA_MIN
from engine.nodes.samplers.sampling import STEPS

if TYPE_CHECKING:
    from engine.diffusion.context import Context
    from engine.diffusion.model import Model
    from engine.diffusion.samplers.sigmas import Sigmas


def _schedule_estimate(inputs: Mapping[str, Any]) -> Estimate:
    steps = inputs["steps"]
    return Estimate((SigmasShape(steps),), work=steps * work.SIGMA)


def _check(literals: Mapping[str, Any]) -> None:
    if literals["alpha"] == 0 or literals["beta"] == 0:
        raise ValueError("alpha and beta must be above 0")


def _check_ends(literals: Mapping[str, Any]) -> None:
    if literals["sigma_min"] > literals["sigma_max"]:
        raise ValueError("sigma_min must not be above sigma_max")


@node(
    "BetaSamplingScheduler",
    inputs={
        "model": Link("MODEL"),
        "steps": STEPS,
        "alpha": Float(0.6, min=0.0, max=50.0, tooltip="The lower, the more small sigmas."),
        "beta": Float(0.6, min=0.0, max=50.0, tooltip="The lower, the more large sigmas."),
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    steps_input="steps",
    check=_check,
    estimate=_schedule_estimate,
)
def beta_sampling_scheduler(
    context: Context, *, model: Model, steps: int, alpha: float, beta: float
) -> tuple[Sigmas]:
    """Sigmas at the quantiles of a beta distribution."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.beta_quantiles(model.levels, steps, alpha, beta),)


@node(
    "AlignYourStepsScheduler",
    inputs={
        "model_type": Choice(("SD1", "SDXL", "SVD"), tooltip="The family of the model."),
        "steps": Int(10, min=1, max=10_000, limit="steps"),
        "denoise": DENOISE,
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    steps_input="steps",
    estimate=_schedule_estimate,
)
def align_your_steps_scheduler(
    context: Context, model_type: str, steps: int, denoise: float
) -> tuple[Sigmas]:
    """Sigmas that were optimized for ten steps of a family of models."""
    from engine.diffusion.samplers import sigmas

    return (sigmas.aligned(model_type, steps, denoise),)


@node(
    "LaplaceScheduler",
    inputs={
        "steps": STEPS,
        "sigma_max": SIGMA_MAX,
        "sigma_min": SIGMA_MIN,
        "mu": Float(0.0, min=-10.0, max=10.0, step=0.1, tooltip="The middle, in log sigma."),
        "beta": Float(0.5, min=0.0, max=10.0, step=0.1, tooltip="How far they spread from it."),
    },
    outputs=("SIGMAS",),
    category="sampling/custom_sampling/schedulers",
    steps_input="steps",
    check=_check_ends,
    estimate=_schedule_estimate,
)
def laplace_scheduler(
    context: Context, *, steps: int, sigma_max: float, sigma_min: float, mu: float, beta: float
) -> tuple[Sigmas]:
    """Sigmas that are densest around one of them."""
    from engine.diffusion.samplers import sigmas

    found = sigmas.laplace(steps, sigma_max=sigma_max, sigma_min=sigma_min, mu=mu, beta=beta)
    return (found,)
