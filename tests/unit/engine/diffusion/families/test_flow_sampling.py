"""Samplers on flow models, on an x0 that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.diffusion.families.flow_sampling import euler_ancestral, require_flow_sigmas
from engine.diffusion.samplers.ancestral import Churn
from engine.diffusion.samplers.noise_levels import FLUX_LEVELS, FlowLevels, flow_levels
from engine.diffusion.samplers.runge_kutta import Sampling
from engine.diffusion.samplers.sampler_lookup import SamplerOptions, sampling_of
from engine.diffusion.samplers.schedules import sigmas_for
from engine.errors import EngineError
from engine.graph.names import SAMPLERS, SCHEDULERS, Sampler, Scheduler
from tests.support.engine.latents import psnr_db_of
from tests.support.engine.make_flow_samplers import (
    CLEAN,
    DENOISE,
    MODELS,
    OUT,
    SCHEDULES,
    SEED,
    STEPS,
    start_noise,
    x0s_of,
)

GOLDEN = dict(np.load(OUT))
LEVELS: dict[str, FlowLevels] = {
    "dev": flow_levels(math.exp(1.15), FLUX_LEVELS),
    "schnell": flow_levels(1.0),
    "z_image": flow_levels(3.0),
}
_SPREAD = 0.5
"""Pictures are normal with this standard deviation, so the best x0 is known at each sigma."""


def _ended(sampling: Sampling, *, needs_uncond: bool = False) -> Tensor:
    try:
        x, sigma = next(sampling)
        while True:
            assert 0 < float(sigma) <= 1
            assert sigma.dtype == torch.float32
            x0s = x0s_of(x, sigma)
            x, sigma = sampling.send(torch.stack(x0s) if needs_uncond else x0s[0])
    except StopIteration as stop:
        end: Tensor = stop.value
        return end


def _end_of(row: Sampler, levels: FlowLevels, scheduler: str, denoise: float) -> Tensor:
    sigmas = sigmas_for(
        levels,
        scheduler,
        STEPS,
        denoise,
        discards_penultimate_sigma=row.discards_penultimate_sigma,
    )
    clean = torch.zeros_like(CLEAN) if denoise == 1 else CLEAN
    x = levels.noised(clean, start_noise(), sigmas[0])
    sampling = sampling_of(row.name, x, sigmas, seed=SEED, levels=levels)
    return levels.ended(_ended(sampling, needs_uncond=row.needs_uncond), sigmas[-1])


@pytest.mark.parametrize("row", SAMPLERS, ids=lambda row: row.name)
def test_a_sampler_ends_where_that_of_comfyui_does(row: Sampler) -> None:
    found = {
        (model, scheduler, denoise): psnr_db_of(
            _end_of(row, LEVELS[model], scheduler, denoise).flatten().numpy(), expected
        )
        for model, of_model in zip(MODELS, GOLDEN[row.cpu_name], strict=True)
        for scheduler, of_schedule in zip(SCHEDULES, of_model, strict=True)
        for denoise, expected in zip(DENOISE, of_schedule, strict=True)
    }
    assert {case: db for case, db in found.items() if db < 96} == {}


@pytest.mark.parametrize(
    "name", ["restart", "webui_dpm_adaptive", "webui_dpm_fast", "webui_dpmpp_3m_sde", "churned"]
)
def test_a_sampler_without_comfyuis_form_ends_with_the_spread_of_pictures(name: str) -> None:
    x = torch.randn((4, 16, 16, 16), generator=torch.Generator().manual_seed(1))
    sigmas = sigmas_for(LEVELS["z_image"], "simple", 40)
    options = SamplerOptions(churn=Churn(amount=5.0) if name == "churned" else Churn())
    name = "euler" if name == "churned" else name
    sampling = sampling_of(name, x, sigmas, seed=3, options=options, levels=LEVELS["z_image"])
    try:
        x, sigma = next(sampling)
        while True:
            kept = 1 - sigma
            share = kept * _SPREAD**2 / ((kept * _SPREAD) ** 2 + sigma**2)
            x, sigma = sampling.send(x * share)
    except StopIteration as stop:
        end = stop.value
    assert 0.4 < float(end.std()) < 0.58


def test_an_ancestral_step_without_noise_is_eulers() -> None:
    x = torch.randn((1, 1, 4, 4), generator=torch.Generator().manual_seed(1))
    sigmas = sigmas_for(flow_levels(1.0), "simple", 8)
    plain = _ended(sampling_of("euler", x, sigmas, seed=1, levels=LEVELS["schnell"]))
    still = _ended(euler_ancestral(x, sigmas, lambda *_: x, eta=0.0))
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
