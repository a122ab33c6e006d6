"""Schedules and samplers against closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.diffusion.samplers import SAMPLERS, Sampler
from engine.diffusion.schedules import (
    MODEL_SIGMAS,
    SCHEDULES,
    SIGMA_MAX,
    SIGMA_MIN,
    sigma_at,
    sigmas_for,
    timestep_of,
)

SPREAD = 0.5
"""Standard deviation of the Gaussian that the exact model below was made for."""


def sample(sampler: Sampler, x: Tensor, sigmas: Tensor) -> Tensor:
    """With the exact denoiser of a Gaussian, whose ODE has a closed solution."""
    sampling = sampler(x, sigmas)
    asked, sigma = next(sampling)
    while True:
        try:
            asked, sigma = sampling.send(asked * SPREAD**2 / (SPREAD**2 + sigma**2))
        except StopIteration as stop:
            found: Tensor = stop.value
            return found


def error_of(sampler: Sampler, steps: int) -> float:
    sigmas = sigmas_for("karras", steps)
    x = torch.full((1, 4, 2, 2), 7.0)
    exact = x * (SPREAD**2 / (SPREAD**2 + sigmas[0] ** 2)).sqrt()
    return float((sample(sampler, x, sigmas) - exact).abs().max())


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_samplers_converge_to_the_exact_solution(name: str) -> None:
    sampler = SAMPLERS[name]
    assert error_of(sampler, 80) < error_of(sampler, 20)
    assert error_of(sampler, 80) < 0.02


def test_second_order_is_closer_than_first() -> None:
    assert error_of(SAMPLERS["dpmpp_2m"], 20) < error_of(SAMPLERS["euler"], 20) / 3


@pytest.mark.parametrize("name", sorted(SAMPLERS))
def test_one_step_gives_the_models_first_answer(name: str) -> None:
    x = torch.full((1, 1, 1, 1), 3.0)
    sigmas = sigmas_for("normal", 1)
    expected = x * SPREAD**2 / (SPREAD**2 + sigmas[0] ** 2)
    assert torch.allclose(sample(SAMPLERS[name], x, sigmas), expected, atol=1e-6)


def test_the_models_own_levels() -> None:
    assert float(SIGMA_MIN) == pytest.approx(0.0291672, rel=1e-5)
    assert float(SIGMA_MAX) == pytest.approx(14.614641, rel=1e-6)
    steps = torch.arange(1000)
    assert torch.equal(timestep_of(MODEL_SIGMAS), steps)
    assert torch.allclose(sigma_at(steps.float()), MODEL_SIGMAS, rtol=1e-5)


@pytest.mark.parametrize("scheduler", sorted(SCHEDULES))
@pytest.mark.parametrize("steps", [1, 2, 20, 1500])
def test_schedules_fall_from_the_largest_level_to_zero(scheduler: str, steps: int) -> None:
    sigmas = sigmas_for(scheduler, steps)
    assert len(sigmas) == steps + 1
    assert float(sigmas[0]) == pytest.approx(float(SIGMA_MAX), rel=1e-5)
    assert float(sigmas[-1]) == 0
    assert bool((sigmas[:-1] > sigmas[1:]).all())


def test_denoise_keeps_the_end_of_a_longer_schedule() -> None:
    assert torch.equal(sigmas_for("karras", 6, 0.3), sigmas_for("karras", 20)[-7:])
    assert len(sigmas_for("karras", 6, 0.0)) == 0
    with pytest.raises(ValueError, match="denoise"):
        sigmas_for("karras", 10_000, 1e-9)
