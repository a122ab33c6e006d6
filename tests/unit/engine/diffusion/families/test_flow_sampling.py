"""Samplers on flow models, on an x0 that is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.diffusion.families.flow_sampling import euler_ancestral, require_flow_sigmas
from engine.diffusion.samplers.noise_levels import flow_levels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.sampler_lookup import sampling_of
from engine.diffusion.samplers.schedules import sigmas_for
from engine.errors import EngineError
from engine.graph.names import SAMPLERS, SCHEDULERS, Sampler, Scheduler

_SPREAD = 0.5
"""Pictures are normal with this standard deviation, so the best x0 is known at each sigma."""


def _best(x: Tensor, sigma: Tensor) -> Tensor:
    kept = 1 - sigma
    variance = (kept * _SPREAD) ** 2 + sigma**2
    return x * kept * _SPREAD**2 / variance


def _ended(sampling: Sampling, *, needs_uncond: bool) -> Tensor:
    try:
        x, sigma = next(sampling)
        while True:
            assert 0 < float(sigma) <= 1
            x0 = _best(x, sigma)
            x, sigma = sampling.send(torch.stack([x0, x0]) if needs_uncond else x0)
    except StopIteration as stop:
        end: Tensor = stop.value
        return end


@pytest.mark.parametrize("row", SAMPLERS, ids=lambda row: row.name)
def test_pictures_have_the_spread_that_the_model_knows(row: Sampler) -> None:
    name, needs_uncond = row.name, row.needs_uncond
    x = torch.randn((4, 16, 16, 16), generator=torch.Generator().manual_seed(1))
    sigmas = sigmas_for(flow_levels(3.0), "simple", 40)
    end = _ended(sampling_of(name, x, sigmas, seed=3, is_flow=True), needs_uncond=needs_uncond)
    # Consistency sampling ends at means and not at draws; the others end close to the spread.
    least = 0.2 if name == "lcm" else 0.4
    assert least < float(end.std()) < 0.58


def test_an_ancestral_step_without_noise_is_eulers() -> None:
    x = torch.randn((1, 16, 4, 4), generator=torch.Generator().manual_seed(1))
    sigmas = sigmas_for(flow_levels(1.0), "simple", 8)
    plain = _ended(sampling_of("euler", x, sigmas, seed=1, is_flow=True), needs_uncond=False)
    still = _ended(euler_ancestral(x, sigmas, lambda *_: x, eta=0.0), needs_uncond=False)
    assert torch.allclose(plain, still, atol=1e-5)


@pytest.mark.parametrize("row", SCHEDULERS, ids=lambda row: row.name)
def test_schedules_fall_from_noise_to_picture(row: Scheduler) -> None:
    sigmas = sigmas_for(flow_levels(3.0), row.name, 8)
    assert float(sigmas[0]) == pytest.approx(1.0, abs=0.05)
    assert float(sigmas[-1]) == 0.0
    assert bool((sigmas.diff() < 0).all())


def test_sigmas_of_other_models_are_refused() -> None:
    with pytest.raises(EngineError, match=r"the schedule contains 14\.6"):
        require_flow_sigmas(torch.tensor([14.6, 1.0, 0.0]))
