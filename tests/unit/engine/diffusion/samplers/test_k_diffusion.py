"""The WebUI's samplers, schedules and noise against numbers of the programs that it is made of."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from engine.diffusion.samplers.ancestral import Churn
from engine.diffusion.samplers.noise import UNVARIED, Variation, drawn_noise, varied
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION as LEVELS
from engine.diffusion.samplers.noise_sources import randn_of
from engine.diffusion.samplers.sampler_lookup import SamplerOptions, sampling_of
from engine.diffusion.samplers.schedules import sigmas_for
from tests.support.engine.make_k_diffusion import CHURN, OUT, SEED, SHAPE, STEPS, denoised

GOLDEN = json.loads(OUT.read_text())


def end_of(
    name: str, sigmas: Tensor, options: SamplerOptions, *, path: Tensor, scale: float = 1.0
) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(SHAPE, generator=generator) * scale
    noise = drawn_noise(x, randn_of(generator))
    sampling = sampling_of(name, x, sigmas, seed=SEED, step_noise=noise, path=path, options=options)
    x, sigma = next(sampling)
    while True:
        try:
            x, sigma = sampling.send(denoised(x, sigma))
        except StopIteration as stop:
            end: Tensor = stop.value
            return end.flatten()[:6]


@pytest.mark.parametrize("case", sorted(GOLDEN["ends"]))
def test_a_sampler_ends_where_k_diffusion_does(case: str) -> None:
    name, eta, *part = case.split()
    whole = sigmas_for(LEVELS, "karras", STEPS)
    sigmas = whole[-6:] if part else whole
    options = SamplerOptions(float(eta))
    end = end_of(name, sigmas, options, path=whole, scale=float(sigmas[0]))
    # A Brownian path has its ends rounded here.
    assert torch.allclose(end, torch.tensor(GOLDEN["ends"][case]), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", sorted(GOLDEN["options"]))
def test_churn_and_the_factor_of_noise_are_those_of_k_diffusion(name: str) -> None:
    sigmas = sigmas_for(LEVELS, "karras", STEPS)
    churn = Churn(CHURN["s_churn"], CHURN["s_tmin"], CHURN["s_tmax"])
    options = SamplerOptions(noise_factor=CHURN["s_noise"], churn=churn)
    end = end_of(name, sigmas, options, path=sigmas, scale=float(sigmas[0]))
    assert torch.allclose(end, torch.tensor(GOLDEN["options"][name]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "golden"), [("webui_ddim", "ddim"), ("plms", "plms")])
def test_a_sampler_along_timesteps_ends_where_diffusers_does(name: str, golden: str) -> None:
    sigmas = sigmas_for(LEVELS, "webui_timesteps", 20)
    scale = float((1 + sigmas[0] ** 2).sqrt())
    end = end_of(name, sigmas, SamplerOptions(0.0), path=sigmas, scale=scale)
    assert torch.allclose(end, torch.tensor(GOLDEN[golden]["end"]), rtol=1e-3, atol=1e-4)


def test_ddim_begins_at_951_and_ends_at_the_first_timestep() -> None:
    sigmas = sigmas_for(LEVELS, "webui_timesteps", 20)
    assert LEVELS.timestep_of(sigmas).tolist() == [*GOLDEN["ddim"]["timesteps"], 0]
    assert len(sigmas_for(LEVELS, "webui_timesteps", 30)) == 31 + 1


@pytest.mark.parametrize("steps", ["10", "20", "30"])
@pytest.mark.parametrize("name", sorted(GOLDEN["sigmas"]))
def test_a_schedule_has_the_sigmas_of_k_diffusion(name: str, steps: str) -> None:
    expected = torch.tensor(GOLDEN["sigmas"][name][steps])
    assert torch.allclose(sigmas_for(LEVELS, name, int(steps)), expected, rtol=1e-4)


def test_fractional_timesteps_are_those_of_k_diffusion() -> None:
    sigmas, expected = GOLDEN["timesteps"]
    found = [LEVELS.fractional_timestep_of(sigma) for sigma in sigmas]
    assert found == pytest.approx(expected, abs=0.01)
    assert LEVELS.fractional_timestep_of(1000.0) == 999
    assert LEVELS.fractional_timestep_of(1e-6) == 0


def test_the_noise_of_steps_goes_on_where_that_of_the_start_ends() -> None:
    generator = torch.Generator().manual_seed(SEED)
    first = torch.randn(SHAPE, generator=generator)
    step = drawn_noise(first, randn_of(generator))(LEVELS.sigma_max, LEVELS.sigma_min)
    assert torch.equal(torch.stack([first, step]), torch.tensor(GOLDEN["noise"]))


def test_beta_has_quantiles_between_both_ends() -> None:
    sigmas = sigmas_for(LEVELS, "webui_beta", 5)
    share = (sigmas - LEVELS.sigma_min) / (LEVELS.sigma_max - LEVELS.sigma_min)
    shares = stats.beta.cdf(share[:5].numpy(), 0.6, 0.6)
    assert shares == pytest.approx([1, 0.75, 0.5, 0.25, 0], abs=1e-4)
    assert sigmas[5] == 0


@pytest.mark.parametrize("steps", [1, 10])
def test_kl_optimal_ends_at_the_smallest_sigma(steps: int) -> None:
    sigmas = sigmas_for(LEVELS, "webui_kl_optimal", steps)
    assert len(sigmas) == steps + 1
    assert sigmas[[0, -1]].tolist() == pytest.approx([14.6146, 0.029167], rel=1e-4)
    assert torch.allclose(sigmas.atan().diff().diff(), torch.tensor(0.0), atol=1e-5)


def test_align_your_steps_has_the_published_sigmas() -> None:
    first = sigmas_for(LEVELS, "align_your_steps", 11)
    assert first.tolist()[:3] == pytest.approx([14.615, 6.475, 3.861])
    assert sigmas_for(LEVELS, "align_your_steps_xl", 11).tolist()[-3:] == pytest.approx(
        [0.113, 0.029, 0]
    )
    assert len(sigmas_for(LEVELS, "align_your_steps", 20)) == 21


def test_unipc_steps_through_time_to_the_first_timestep() -> None:
    sigmas = sigmas_for(LEVELS, "webui_time_uniform", 4)
    assert LEVELS.timestep_of(sigmas).tolist() == pytest.approx([999, 749, 500, 250, 0], abs=1)


def test_a_restart_goes_back_once_and_from_36_steps_on_twice() -> None:
    def rises(steps: int) -> int:
        sigmas = sigmas_for(LEVELS, "karras", steps)
        generator = torch.Generator().manual_seed(SEED)
        x = torch.randn(SHAPE, generator=generator)
        noise = drawn_noise(x, randn_of(generator))
        sampling = sampling_of("restart", x, sigmas, seed=SEED, step_noise=noise)
        x, sigma = next(sampling)
        levels = [float(sigma)]
        with suppress(StopIteration):
            while True:
                x, sigma = sampling.send(denoised(x, sigma))
                levels.append(float(sigma))
        return sum(b > a * 2 for a, b in pairwise(levels))

    assert [rises(steps) for steps in (19, 20, 35, 36)] == [0, 1, 1, 2]


def test_a_schedule_with_an_end_keeps_it_where_the_sigma_before_is_left_out() -> None:
    longer = sigmas_for(LEVELS, "webui_kl_optimal", 7)
    found = sigmas_for(LEVELS, "webui_kl_optimal", 6, discards_penultimate_sigma=True)
    assert torch.equal(found, torch.cat([longer[:-2], longer[-1:]]))


CELLS = (1, 4, 8, 12)
OWN_SEED, OTHER = 7, 8


def drawn(seed: int, *cells: int) -> Tensor:
    shape = (1, 4, *cells) if cells else CELLS
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


OWN_NOISE = drawn(OWN_SEED)


def varied_by(variation: Variation) -> Tensor:
    return varied(OWN_NOISE, OWN_SEED, variation)


def test_noise_is_its_own_without_a_variation() -> None:
    assert varied_by(UNVARIED) is OWN_NOISE
    assert torch.equal(varied_by(Variation(cells=CELLS[2:])), OWN_NOISE)


@pytest.mark.parametrize("strength", [0.05, 0.5, 0.9])
def test_a_variation_is_on_the_arc_between_two_noises(strength: float) -> None:
    found = varied_by(Variation(OTHER, strength)).double().numpy()
    a, b = OWN_NOISE.double().numpy(), drawn(OTHER).double().numpy()
    for channel in range(4):
        for column in range(CELLS[3]):
            start, end = a[0, channel, :, column], b[0, channel, :, column]
            cosine = start @ end / np.linalg.norm(start) / np.linalg.norm(end)
            angle = np.arccos(cosine)
            weights = np.sin(np.array([1 - strength, strength]) * angle) / np.sin(angle)
            expected = weights[0] * start + weights[1] * end
            assert found[0, channel, :, column] == pytest.approx(expected, abs=1e-4)


def test_a_variation_of_full_strength_is_the_other_noise() -> None:
    found = varied_by(Variation(OTHER, 1.0))
    assert torch.allclose(found, drawn(OTHER), atol=1e-5)
    of_itself = varied_by(Variation(OWN_SEED, 0.5))
    assert torch.allclose(of_itself, OWN_NOISE, atol=1e-5)


def test_smaller_noise_is_put_into_the_middle() -> None:
    found = varied_by(Variation(cells=(4, 6)))
    assert torch.equal(found[..., 2:6, 3:9], drawn(OWN_SEED, 4, 6))
    assert torch.equal(found[..., :2, :], OWN_NOISE[..., :2, :])
    assert torch.equal(found[..., 6:, :], OWN_NOISE[..., 6:, :])


def test_of_larger_noise_the_middle_is_taken() -> None:
    found = varied_by(Variation(OTHER, 1.0, cells=(16, 6)))
    assert torch.allclose(found[..., 3:9], drawn(OTHER, 16, 6)[..., 4:12, :], atol=1e-5)
    odd = varied_by(Variation(cells=(9, 12)))
    assert torch.equal(odd[..., :7, :], drawn(OWN_SEED, 9, 12)[..., 1:8, :])
    assert torch.equal(odd[..., 7:, :], OWN_NOISE[..., 7:, :])


def test_noise_is_finite_for_any_size() -> None:
    for cells in ((1, 1), (512, 2), (2, 512)):
        found = varied_by(Variation(OTHER, 0.3, cells=cells))
        assert found.shape == CELLS
        assert found.isfinite().all()
