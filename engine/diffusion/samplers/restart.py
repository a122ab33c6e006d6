"""Restart: Xu et al. 2023 (arXiv:2306.14878)."""

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
    """Heun's steps that go back once, from 36 steps on twice, to a sigma of about 2, with noise.

    A restart is made at the sigma nearest to 0.1. Its steps are taken off those of the schedule,
    of which the ends alone count: the rest is Karras's. Below 20 steps there is none.
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
    """The steps of a schedule with those of its restarts, in order."""
    steps = len(sigmas) - 1
    times, length = _restarts(steps)
    if not times:
        yield from pairwise(sigmas)
        return
    ends = sigmas[sigmas > 0]
    above_zero = karras_between(ends[0], ends[-1], steps - times * length)
    sigmas = torch.cat([above_zero, torch.zeros(1)])
    low, high = (int((sigmas - level).abs().argmin()) for level in (_RESTART_MIN, _RESTART_MAX))
    for place, step in enumerate(pairwise(sigmas), start=1):
        yield step
        if place == low and high < low:
            again = karras_between(sigmas[high], sigmas[low], length + 1)
            for _ in range(times):
                yield from pairwise(again)


def _restarts(steps: int) -> tuple[int, int]:
    """How many restarts there are, and of how many steps."""
    if steps < _LEAST_STEPS:
        return 0, 0
    return (2, steps // 4) if steps >= _TWICE_FROM else (1, _STEPS_OF_A_RESTART)
