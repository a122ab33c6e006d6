"""The functions of samplers and schedulers, which the rows of `engine.graph.names` name."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pkgutil import resolve_name
from typing import Any

from torch import Tensor

from engine.diffusion.samplers.noise import brownian_noise, independent_noise
from engine.diffusion.samplers.noise_levels import NoiseLevels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.graph import names


@cache
def function_at(place: str) -> Any:
    """The function at `module:function` in this package; its module is imported at first use."""
    return resolve_name(f"{__package__}.{place}")


def schedule_of(name: str) -> Callable[[NoiseLevels, int], Tensor]:
    """The function of the scheduler of that name."""
    schedule: Callable[[NoiseLevels, int], Tensor] = function_at(names.SCHEDULER_OF[name].function)
    return schedule


def sampling_of(
    name: str, x: Tensor, sigmas: Tensor, *, seed: int, step_seed: int | None = None
) -> Sampling:
    """The sampler of that name at its start.

    Brownian paths are drawn from `seed`; independent noise from `step_seed` where it is given.
    """
    row = names.SAMPLER_OF[name]
    sampler: Callable[..., Sampling] = function_at(row.function)
    match row.noise:
        case "none":
            return sampler(x, sigmas)
        case "independent":
            noise_seed = seed if step_seed is None else step_seed
            return sampler(x, sigmas, independent_noise(x, noise_seed))
        case "brownian":
            return sampler(x, sigmas, brownian_noise(x, sigmas, seed))
