"""The functions of samplers and schedulers, which the rows of the tables name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from engine.diffusion.families.flow_sampling import FLOW_SAMPLERS, by_levels, in_levels
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
    """What may be chosen of a sampler."""

    eta: float | None = None
    """How much noise its steps add; None: as much as is usual. Without noise it has no effect."""
    noise_factor: float = 1.0
    """What that noise is multiplied with."""
    churn: Churn = NO_CHURN
    """Of samplers that use no past step; it has no effect on others."""


DEFAULT = SamplerOptions()


@cache
def function_at(place: str) -> Any:
    """The function at `module:function` in this package; its module is imported at first use."""
    return resolve_name(f"{__package__}.{place}")


def schedule_of(name: str) -> Callable[[NoiseLevels, int], Tensor]:
    """The function of the scheduler of that name."""
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
    """The sampler of that name at its start.

    Brownian paths are drawn from `seed`, over the sigmas of `path`, or over `sigmas`; independent
    noise is `step_noise`, or draws from `seed`. `is_flow`: the sigmas are those of a flow model.
    """
    row = SAMPLER_OF[name]
    sampler: Callable[..., Sampling] = function_at(row.function)
    chosen = {} if row.eta is None or options.eta is None else {"eta": options.eta}
    is_churned = row.churns and options.churn.amount > 0
    own = FLOW_SAMPLERS.get(name) if is_flow else None
    is_by_levels = is_flow and own is None
    if row.noise == "none" and not is_churned:
        if is_by_levels and row.needs_uncond:
            return by_levels(sampler, x, sigmas)
        return sampler(x, sigmas)
    if row.noise == "brownian":
        noise = brownian_noise(x, sigmas if path is None else path, seed)
    else:
        noise = step_noise or independent_noise(x, seed)
    noise = scaled_noise(noise, options.noise_factor)
    if is_by_levels:
        noise = in_levels(noise)
    steps = partial(own or sampler, noise_sampler=noise, **chosen)
    if is_churned:
        steps = partial(churned, sampler, noise_sampler=noise, churn=options.churn)
    return by_levels(steps, x, sigmas) if is_by_levels else steps(x, sigmas)
