"""The sampler Restart (Xu et al. 2023, arXiv:2306.14878)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from engine.diffusion.samplers.noise import NoiseSampler
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.schedules import karras_between

_LEAST_STEPS = 20
_STEPS_OF_A_RESTART = 9
_TWICE_FROM = 36
_RESTART_MIN, _RESTART_MAX = 0.1, 2.0


def restart(x: Tensor, sigmas: Tensor, noise_sampler: NoiseSampler) -> Sampling:
    """Make Heun's steps with restarts.

    A restart begins at the sigma nearest to 0.1. It adds noise up to a sigma of about 2, and makes
    the steps between these sigmas again. There is no restart for fewer than 20 steps, one restart
    for 20 to 35 steps, and two restarts for 36 or more.

    With restarts, Karras' schedule replaces the sigmas between the ends of the schedule. The number
    of steps in Karras' schedule is lowered by the number of steps in all restarts.
    """
    position = sigmas[0]
    for sigma, sigma_next in _steps(sigmas):
        if sigma > position:
            x = x + noise_sampler(position, sigma) * (sigma**2 - position**2).sqrt()
        x0 = yield x, sigma
        slope = (x - x0) / sigma
        x_next = x + slope * (sigma_next - sigma)
        if sigma_next > 0:
            x0 = yield x_next, sigma_next
            slope = (slope + (x_next - x0) / sigma_next) / 2
            x_next = x + slope * (sigma_next - sigma)
        x, position = x_next, sigma_next
    return x


def _steps(sigmas: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the steps of a schedule and of its restarts, in order."""
    steps = len(sigmas) - 1
    times, length = _restarts(steps)
    if not times:
        yield from pairwise(sigmas)
        return
    ends = sigmas[sigmas > 0]
    above_zero = karras_between(ends[0], ends[-1], steps - times * length)
    sigmas = torch.cat([above_zero, torch.zeros(1)])
    low, high = (int((sigmas - level).abs().argmin()) for level in (_RESTART_MIN, _RESTART_MAX))
    for number, step in enumerate(pairwise(sigmas), start=1):
        yield step
        if number == low and high < low:
            again = karras_between(sigmas[high], sigmas[low], length + 1)
            for _ in range(times):
                yield from pairwise(again)


def _restarts(steps: int) -> tuple[int, int]:
    """Return the number of restarts, and the number of steps in each restart."""
    if steps < _LEAST_STEPS:
        return 0, 0
    return (2, steps // 4) if steps >= _TWICE_FROM else (1, _STEPS_OF_A_RESTART)
