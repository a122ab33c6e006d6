"""Schedules that nodes make by other rules than names, and noise levels without timesteps."""

from __future__ import annotations

import math

import pytest
import torch

from engine.diffusion.families.stable_diffusion import SD1
from engine.diffusion.model import Model
from engine.diffusion.samplers.continuous_levels import ContinuousLevels, continuous_levels
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION
from engine.diffusion.samplers.schedules import sigmas_for
from engine.diffusion.samplers.sigmas import aligned, laplace
from engine.nodes.model_patches import model_sampling_continuous_edm
from engine.nodes.samplers.schedulers import laplace_scheduler

LOG = continuous_levels(120.0, 0.002, "log")
ANGLE = continuous_levels(500.0, 0.03, "angle")


@pytest.mark.parametrize("family", ["SD1", "SDXL"])
def test_ten_aligned_steps_are_the_authors(family: str) -> None:
    found = aligned(family, 10, 1.0)
    assert len(found.values) == 11
    assert float(found.values[0]) == pytest.approx(float(STABLE_DIFFUSION.sigma_max))
    timesteps = STABLE_DIFFUSION.timestep_of(found.values[:-1]).tolist()
    assert timesteps[:2] == ([999, 850] if family == "SD1" else [999, 845])
    assert float(found.values[-1]) == 0


def test_a_part_of_aligned_steps_is_the_end_of_them() -> None:
    whole, half = aligned("SDXL", 12, 1.0), aligned("SDXL", 12, 0.5)
    assert torch.equal(half.values, whole.values[-7:])
    assert len(aligned("SVD", 3, 0.0).values) == 0


def test_laplace_is_densest_around_its_middle_and_keeps_the_ends() -> None:
    found = laplace(101, sigma_max=14.0, sigma_min=0.03, mu=0.5, beta=0.5).values
    assert float(found[50]) == pytest.approx(math.exp(0.5), rel=1e-4)
    assert float(found[0]) == pytest.approx(14.0)
    assert float(found[-1]) == pytest.approx(0.03)
    steps = -found.log().diff()
    assert steps[48:52].max() < steps[3:10].max()


def test_ends_that_are_the_wrong_way_round_are_refused() -> None:
    check = laplace_scheduler.check
    assert check is not None
    with pytest.raises(ValueError, match="above sigma_max"):
        check({"sigma_min": 2.0, "sigma_max": 1.0})
    check = model_sampling_continuous_edm.check
    assert check is not None
    with pytest.raises(ValueError, match="above 0"):
        check({"sigma_min": 0.0, "sigma_max": 1.0})


@pytest.mark.parametrize("levels", [LOG, ANGLE])
def test_times_and_sigmas_are_inverse(levels: ContinuousLevels) -> None:
    sigmas = torch.tensor([0.05, 1.0, 80.0])
    assert torch.allclose(levels.sigma_at(levels.timestep_of(sigmas)), sigmas, rtol=1e-4)
    assert levels.timestep_near(1.0) == pytest.approx(float(levels.timestep_of(sigmas)[1]))


def test_the_time_is_a_quarter_of_the_logarithm_or_a_part_of_a_right_angle() -> None:
    assert LOG.timestep_near(math.exp(2.0)) == pytest.approx(0.5)
    assert ANGLE.timestep_near(1.0) == pytest.approx(0.5)


def test_percents_are_even_in_the_logarithm() -> None:
    assert LOG.percent_to_sigma(0.0) == math.inf
    assert LOG.percent_to_sigma(1.0) == 0.0
    assert LOG.percent_to_sigma(0.5) == pytest.approx(math.sqrt(120.0 * 0.002))


@pytest.mark.parametrize("scheduler", ["karras", "normal", "simple", "sgm_uniform", "beta"])
def test_named_schedules_lie_within_the_range(scheduler: str) -> None:
    found = sigmas_for(LOG, scheduler, 9)
    assert float(found[0]) == pytest.approx(120.0, rel=1e-3)
    assert bool((found[:-1].diff() < 0).all())
    assert float(found[-2]) >= 0.002 * 0.999


def test_equal_ranges_are_one_object_so_that_jobs_share_calls() -> None:
    assert continuous_levels(120.0, 0.002, "log") is LOG


@pytest.mark.parametrize("sigma", [0.1, 1.0, 80.0])
def test_edm_is_the_negative_of_v_and_scales_to_the_data(sigma: float) -> None:
    x, output, at = torch.randn(1, 4, 2, 2), torch.randn(1, 4, 2, 2), torch.tensor(sigma)
    model = Model(None, SD1(), 1.0, prediction="edm", sigma_data=0.5)
    spread = sigma**2 + 0.25
    expected = x * 0.25 / spread + output * sigma * 0.5 / math.sqrt(spread)
    assert torch.allclose(model.denoised(x, output, at), expected, atol=1e-5)
    assert torch.allclose(model.scaled_input(x, at), x / math.sqrt(spread))
    v = Model(None, SD1(), 1.0, prediction="v_prediction", sigma_data=0.5)
    assert torch.allclose(v.denoised(x, -output, at), expected, atol=1e-5)
