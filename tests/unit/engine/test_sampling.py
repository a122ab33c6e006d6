"""Schedules and samplers against closed forms."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from engine import names
from engine.diffusion.noise import brownian, fresh
from engine.diffusion.noise_levels import STABLE_DIFFUSION as LEVELS
from engine.diffusion.sampling import NOISY_SAMPLERS, SAMPLERS, sampling_of
from engine.diffusion.schedules import SCHEDULES, sigmas_for

SPREAD = 0.5
"""Standard deviation of the Gaussian that the exact model below was made for."""
ENDS_ABOVE_ZERO = {"dpm_fast", "dpm_adaptive"}
OWN_LEVELS = {"simple", "ddim_uniform", "beta"}
"""Schedules of the model's own levels: there are 1000 of them."""
SECOND_ORDER = (
    "heun",
    "dpm_2",
    "lms",
    "dpm_fast",
    "dpmpp_2m",
    "deis",
    "uni_pc",
    "uni_pc_bh2",
    "res_multistep",
)


def sample(name: str, x: Tensor, sigmas: Tensor, seed: int = 1) -> Tensor:
    """With the exact denoiser of a Gaussian, whose ODE has a closed solution."""
    sampling = sampling_of(name, x, sigmas, seed=seed)
    asked, sigma = next(sampling)
    while True:
        try:
            asked, sigma = sampling.send(asked * SPREAD**2 / (SPREAD**2 + sigma**2))
        except StopIteration as stop:
            found: Tensor = stop.value
            return found


def error_of(name: str, steps: int) -> float:
    skips = names.SAMPLER_OF[name].skips_penultimate
    sigmas = sigmas_for(LEVELS, "karras", steps, skips_penultimate=skips)
    x = torch.full((1, 4, 2, 2), 7.0)
    end = sigmas[-2] if name in ENDS_ABOVE_ZERO else sigmas[-1]
    exact = x * ((SPREAD**2 + end**2) / (SPREAD**2 + sigmas[0] ** 2)).sqrt()
    return float((sample(name, x, sigmas) - exact).abs().max())


@pytest.mark.parametrize("name", sorted(set(SAMPLERS) - {"dpm_adaptive"}))
def test_samplers_converge_to_the_exact_solution(name: str) -> None:
    assert error_of(name, 80) < error_of(name, 20)
    assert error_of(name, 80) < 0.02


def test_the_adaptive_sampler_keeps_its_tolerance_however_many_steps() -> None:
    assert error_of("dpm_adaptive", 1000) == pytest.approx(error_of("dpm_adaptive", 3), abs=1e-4)
    assert error_of("dpm_adaptive", 20) < 0.02


def test_the_adaptive_sampler_refuses_what_is_no_number() -> None:
    sampling = sampling_of(
        "dpm_adaptive", torch.ones(1, 4, 2, 2), sigmas_for(LEVELS, "normal", 4), seed=1
    )
    asked, _ = next(sampling)
    sampling.send(asked * torch.nan)
    sampling.send(asked)
    with pytest.raises(ValueError, match="number"):
        sampling.send(asked)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_second_order_is_closer_than_first(name: str) -> None:
    assert error_of(name, 20) < error_of("euler", 20) / 3


@pytest.mark.parametrize("name", sorted(set(NOISY_SAMPLERS) - {"lcm"}))
def test_noisy_samplers_end_in_the_models_distribution(name: str) -> None:
    skips = names.SAMPLER_OF[name].skips_penultimate
    sigmas = sigmas_for(LEVELS, "karras", 60, skips_penultimate=skips)
    x = torch.randn((1, 4, 64, 64), generator=torch.Generator().manual_seed(5)) * sigmas[0]
    found = sample(name, x, sigmas)
    assert float(found.mean()) == pytest.approx(0, abs=0.02)
    assert float(found.std()) == pytest.approx(SPREAD, rel=0.1)


@pytest.mark.parametrize("name", sorted(NOISY_SAMPLERS))
def test_noise_on_the_way_is_that_of_the_seed(name: str) -> None:
    x, sigmas = torch.full((1, 4, 4, 4), 7.0), sigmas_for(LEVELS, "karras", 6)
    assert torch.equal(sample(name, x, sigmas), sample(name, x, sigmas))
    assert not torch.allclose(sample(name, x, sigmas), sample(name, x, sigmas, seed=2), atol=0.01)


def test_fresh_noise_begins_like_that_of_the_start() -> None:
    x = torch.zeros(2, 4, 3, 3)
    first = torch.randn(x.shape, generator=torch.Generator().manual_seed(7))
    noise = fresh(x, 7)
    assert torch.equal(noise(LEVELS.most, LEVELS.least), first)
    assert not torch.equal(noise(LEVELS.most, LEVELS.least), first)


def test_brownian_noise_adds_up_along_the_path() -> None:
    x, sigmas = torch.zeros(1, 4, 32, 32), sigmas_for(LEVELS, "karras", 8)
    noise = brownian(x, sigmas, 2**64 - 1)
    parts = [noise(a, b) * (a - b).sqrt() for a, b in pairwise(sigmas[:-1])]
    whole = noise(sigmas[0], sigmas[-2]) * (sigmas[0] - sigmas[-2]).sqrt()
    assert torch.allclose(torch.stack(parts).sum(0), whole, atol=1e-4)
    assert float(noise(sigmas[0], sigmas[1]).std()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("name", sorted({*SAMPLERS, *NOISY_SAMPLERS} - ENDS_ABOVE_ZERO))
def test_one_step_gives_the_models_first_answer(name: str) -> None:
    x = torch.full((1, 1, 1, 1), 3.0)
    sigmas = sigmas_for(LEVELS, "normal", 1)
    expected = x * SPREAD**2 / (SPREAD**2 + sigmas[0] ** 2)
    # UniPC ends at a level of 0.001.
    assert torch.allclose(sample(name, x, sigmas), expected, atol=1e-3)


def test_the_models_own_levels() -> None:
    assert float(LEVELS.least) == pytest.approx(0.0291672, rel=1e-5)
    assert float(LEVELS.most) == pytest.approx(14.614641, rel=1e-6)
    steps = torch.arange(1000)
    assert torch.equal(LEVELS.timestep_of(LEVELS.sigmas), steps)
    assert torch.allclose(LEVELS.sigma_at(steps.float()), LEVELS.sigmas, rtol=1e-5)


@pytest.mark.parametrize("scheduler", sorted(SCHEDULES))
@pytest.mark.parametrize("steps", [1, 2, 20, 1500])
def test_schedules_fall_from_the_largest_level_to_zero(scheduler: str, steps: int) -> None:
    sigmas = sigmas_for(LEVELS, scheduler, steps)
    if scheduler not in OWN_LEVELS or steps <= 20:
        assert len(sigmas) == steps + 1
    if scheduler != "ddim_uniform":
        assert float(sigmas[0]) == pytest.approx(float(LEVELS.most), rel=1e-5)
    assert float(sigmas[-1]) == 0
    assert bool((sigmas[:-1] > sigmas[1:]).all())


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("simple", [999, 832, 666, 499, 333, 166]),
        ("ddim_uniform", [997, 831, 665, 499, 333, 167, 1]),
        ("beta", [999, 908, 724, 500, 275, 91]),
        ("sgm_uniform", [999, 832, 666, 500, 333, 166]),
        ("normal", [999, 799, 599, 400, 200, 0]),
    ],
)
def test_the_training_steps_of_six_steps(scheduler: str, expected: list[int]) -> None:
    found = LEVELS.timestep_of(sigmas_for(LEVELS, scheduler, 6)[:-1])
    assert (found - torch.tensor(expected)).abs().max() <= 1


def test_a_linear_quadratic_schedule_is_linear_in_its_first_half() -> None:
    done = 1 - sigmas_for(LEVELS, "linear_quadratic", 10) / LEVELS.most
    assert torch.allclose(done[:6], torch.linspace(0, 0.025, 6), atol=1e-6)
    assert torch.allclose(done[5:].diff().diff(), done[5:].diff().diff()[0], atol=1e-5)


def test_denoise_keeps_the_end_of_a_longer_schedule() -> None:
    assert torch.equal(sigmas_for(LEVELS, "karras", 6, 0.3), sigmas_for(LEVELS, "karras", 20)[-7:])
    assert len(sigmas_for(LEVELS, "karras", 6, 0.0)) == 0
    with pytest.raises(ValueError, match="denoise"):
        sigmas_for(LEVELS, "karras", 10_000, 1e-9)


@pytest.mark.parametrize("denoise", [1.0, 0.5])
def test_the_last_level_but_one_is_left_out_where_a_sampler_wants_it_so(denoise: float) -> None:
    longer = (
        sigmas_for(LEVELS, "karras", 7) if denoise == 1 else sigmas_for(LEVELS, "karras", 13)[-8:]
    )
    found = sigmas_for(LEVELS, "karras", 6, denoise, skips_penultimate=True)
    assert torch.equal(found, torch.cat([longer[:-2], longer[-1:]]))
