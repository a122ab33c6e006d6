"""Samplers on flow models.

The path from noise to picture is dx/dsigma = (x - x0) / sigma, as it is of other models, so
samplers that follow it alone work unchanged. One that adds noise takes x to be x0 and noise of
sigma, which the x of a flow is not. It runs in y = x / (1 - sigma), whose level of noise is
sigma / (1 - sigma): there its paper's equations hold.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor

from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.errors import EngineError

_MOST = 1 - 1e-4
"""All noise would be an infinite level."""


def require_flow_sigmas(sigmas: Tensor) -> None:
    """Raises EngineError for sigmas that are none of a flow model."""
    if bool((sigmas > 1.0 + 1e-6).any()):
        raise EngineError(
            f"the sigmas of this model are 0 to 1, and the schedule has {float(sigmas.max()):g}: "
            "take one that is made for the model, such as BasicScheduler"
        )


def levels_of(sigmas: Tensor) -> Tensor:
    """The levels of noise of y."""
    held = sigmas.clamp(max=_MOST)
    return held / (1 - held)


def sigmas_of(levels: Tensor) -> Tensor:
    """The sigmas of levels of noise of y."""
    return levels / (1 + levels)


def in_levels(noise: NoiseSampler) -> NoiseSampler:
    """The noise between two levels, which is drawn by sigmas."""

    def draw(level: Tensor, level_next: Tensor) -> Tensor:
        return noise(sigmas_of(level), sigmas_of(level_next))

    return draw


def by_levels(sampler: Callable[[Tensor, Tensor], Sampling], x: Tensor, sigmas: Tensor) -> Sampling:
    """The steps of `sampler` along the levels, on y."""
    levels = levels_of(sigmas)
    steps = sampler(x * (1 + levels[0]), levels)
    try:
        y, level = next(steps)
        while True:
            x0 = yield y / (1 + level), sigmas_of(level)
            y, level = steps.send(x0)
    except StopIteration as stop:
        end: Tensor = stop.value
        return end / (1 + levels[-1])


def euler_ancestral(
    x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler, *, eta: float = 1.0
) -> Sampling:
    """Euler steps beyond the next sigma, and back to it with new noise.

    A step goes to sigma_next (1 + eta (sigma_next / sigma - 1)). Scaling the signal back to
    1 - sigma_next scales the noise that is left, and as much is added as makes it sigma_next.
    """
    for sigma, sigma_next in pairwise(sigmas):
        x0 = yield x, sigma
        sigma_down = sigma_next * (1 + eta * (sigma_next / sigma - 1))
        x = x0 + (x - x0) * sigma_down / sigma
        if sigma_next > 0 and eta > 0:
            scale = (1 - sigma_next) / (1 - sigma_down)
            variance = sigma_next**2 - (scale * sigma_down) ** 2
            x = scale * x + variance.clamp(min=0).sqrt() * noise_sampler(sigma, sigma_next)
    return x


FLOW_SAMPLERS: dict[str, Callable[..., Sampling]] = {"euler_ancestral": euler_ancestral}
"""Those that have a form of their own for flow models, by their names."""
