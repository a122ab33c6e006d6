"""Adapts samplers for models that predict noise to flow models.

For both kinds of model, the path from noise to picture is dx/dsigma = (x - x0) / sigma. Samplers
that only follow this path work unchanged. A sampler that adds noise assumes that x is x0 plus noise
of level sigma, but the x of a flow model is (1 - sigma) x0 + sigma noise. Such a sampler works on
y = x / (1 - sigma) instead. The noise level of y is sigma / (1 - sigma), and the equations of the
sampler's paper are valid for y.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor

from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.errors import EngineError

_MOST_SIGMA = 1 - 1e-4
"""The largest sigma that is used. A sigma of 1 would be an infinite noise level."""


def require_flow_sigmas(sigmas: Tensor) -> None:
    """Raise EngineError for sigmas above 1, which no flow model has."""
    if bool((sigmas > 1.0 + 1e-6).any()):
        raise EngineError(
            "the sigmas of this model are from 0 to 1, but the schedule contains "
            f"{float(sigmas.max()):g}: use a schedule that is made for the model, such as "
            "BasicScheduler"
        )


def levels_of(sigmas: Tensor) -> Tensor:
    """Return the noise levels of y for these sigmas."""
    clamped = sigmas.clamp(max=_MOST_SIGMA)
    return clamped / (1 - clamped)


def sigmas_of(levels: Tensor) -> Tensor:
    """Return the sigmas for noise levels of y."""
    return levels / (1 + levels)


def noise_by_level(noise: NoiseSampler) -> NoiseSampler:
    """Return a noise sampler that takes levels of y instead of sigmas."""

    def draw(level: Tensor, level_next: Tensor) -> Tensor:
        return noise(sigmas_of(level), sigmas_of(level_next))

    return draw


def run_on_levels(
    sampler: Callable[[Tensor, Tensor], Sampling], x: Tensor, sigmas: Tensor
) -> Sampling:
    """Run `sampler` on y = x / (1 - sigma), with the noise levels of y instead of `sigmas`."""
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
    """Sample a flow model with Euler steps that go below the next sigma, and add new noise.

    A step ends at sigma_next (1 + eta (sigma_next / sigma - 1)). x is then scaled so that the share
    of x0 is 1 - sigma_next. New noise raises the noise level to sigma_next.
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
"""Samplers that have a special form for flow models, by name."""
