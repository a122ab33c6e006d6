"""Finds the functions of samplers and schedulers by their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from engine.diffusion.families.flow_sampling import for_flow, run_on_levels
from engine.diffusion.samplers.ancestral import NO_CHURN, Churn, churned
from engine.diffusion.samplers.noise import (
    NoiseSampler,
    brownian_noise,
    independent_noise,
    scaled_noise,
)
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION, NoiseLevels
from engine.diffusion.samplers.noise_sources import SeededRandn, cpu_randn
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
    path_draws: SeededRandn = cpu_randn,
    path: Tensor | None = None,
    options: SamplerOptions = DEFAULT,
    levels: NoiseLevels = STABLE_DIFFUSION,
) -> Sampling:
    """Return the generator of a sampler, before its first step.

    A sampler with Brownian noise draws its path from `seed` by `path_draws`. The path covers the
    sigmas of `path`, or `sigmas` if `path` is None. A sampler with independent noise uses
    `step_noise`, or draws from `seed` if `step_noise` is None. `levels` are those of the model.
    """
    row = SAMPLER_OF[name]
    sampler: Callable[..., Sampling] = function_at(row.function)
    chosen: dict[str, Any] = {}
    if row.eta is not None and options.eta is not None:
        chosen["eta"] = options.eta
    if row.noise_interval is not None:
        chosen["interval"] = tuple(map(levels.percent_to_sigma, row.noise_interval))
    is_churned = row.churns and options.churn.amount > 0
    if row.noise != "none" or is_churned:
        if row.noise == "brownian":
            noise = brownian_noise(x, sigmas if path is None else path, seed, path_draws)
        else:
            noise = step_noise or independent_noise(x, seed)
        chosen["noise_sampler"] = scaled_noise(noise, options.noise_factor)
    if is_churned:
        sampler = partial(churned, sampler, churn=options.churn)
    if levels.is_flow:
        run = partial(run_on_levels, sampler, levels)
        sampler = run if is_churned else for_flow(row.cpu_name, sampler, levels)
    return sampler(x, sigmas, **chosen)
