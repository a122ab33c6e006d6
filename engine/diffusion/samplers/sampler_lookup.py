"""Finds the functions of samplers and schedulers by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from engine.diffusion.families.flow_sampling import FLOW_SAMPLERS, noise_by_level, run_on_levels
from engine.diffusion.samplers.ancestral import NO_CHURN, Churn, churned
from engine.diffusion.samplers.noise import (
    NoiseSampler,
    brownian_noise,
    independent_noise,
    scaled_noise,
)
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.webui.sampler_names import SAMPLER_OF, SCHEDULER_OF


@dataclass(frozen=True, slots=True)
class SamplerOptions:
    eta: float | None = None
    """None: the default, `Sampler.eta`. Samplers without eta ignore this option."""
    noise_factor: float = 1.0
    """The factor of the noise of the steps."""
    churn: Churn = NO_CHURN
    """The noise before each step. Only samplers with `Sampler.churns` use this option."""


DEFAULT = SamplerOptions()


@cache
def function_at(place: str) -> Any:
    """Return the function at `module:function` in this package. Imports the module if needed."""
    return resolve_name(f"{__package__}.{place}")


def schedule_of(name: str) -> Callable[[NoiseLevels, int], Tensor]:
    schedule: Callable[[NoiseLevels, int], Tensor] = function_at(SCHEDULER_OF[name].function)
    return schedule


def sampling_of(
    name: str,
    x: Tensor,
    sigmas: Tensor,
    *,
    seed: int,
    step_noise: NoiseSampler | None = None,
    path: Tensor | None = None,
    options: SamplerOptions = DEFAULT,
    is_flow: bool = False,
) -> Sampling:
    """Return the generator of a sampler, before its first step.

    A sampler with Brownian noise draws its path from `seed`. The path covers the sigmas of `path`,
    or `sigmas` if `path` is None. A sampler with independent noise uses `step_noise`, or draws from
    `seed` if `step_noise` is None. `is_flow` is true for the sigmas of a flow model.
    """
    row = SAMPLER_OF[name]
    sampler: Callable[..., Sampling] = function_at(row.function)
    chosen = {} if row.eta is None or options.eta is None else {"eta": options.eta}
    is_churned = row.churns and options.churn.amount > 0
    own = FLOW_SAMPLERS.get(name) if is_flow else None
    runs_on_levels = is_flow and own is None
    if row.noise == "none" and not is_churned:
        if runs_on_levels and row.needs_uncond:
            return run_on_levels(sampler, x, sigmas)
        return sampler(x, sigmas)
    if row.noise == "brownian":
        noise = brownian_noise(x, sigmas if path is None else path, seed)
    else:
        noise = step_noise or independent_noise(x, seed)
    noise = scaled_noise(noise, options.noise_factor)
    if runs_on_levels:
        noise = noise_by_level(noise)
    steps = partial(own or sampler, noise_sampler=noise, **chosen)
    if is_churned:
        steps = partial(churned, sampler, noise_sampler=noise, churn=options.churn)
    return run_on_levels(steps, x, sigmas) if runs_on_levels else steps(x, sigmas)
