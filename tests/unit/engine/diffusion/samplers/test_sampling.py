"""Schedules and samplers against closed forms."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from engine.diffusion.samplers.multistep import ipndm_v_weights, stochastic_adams
from engine.diffusion.samplers.noise import brownian_noise, independent_noise
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION as LEVELS
from engine.diffusion.samplers.runge_kutta import Sampling, euler_cfg_pp
from engine.diffusion.samplers.sampler_lookup import sampling_of
from engine.diffusion.samplers.schedules import sigmas_for
from engine.graph import names

SPREAD = 0.5
"""Standard deviation of the Gaussian that the exact model below was made for."""
SCHEDULERS = sorted(names.SCHEDULER_OF)
DETERMINISTIC = {row.name for row in names.SAMPLERS if row.noise == "none"}
NOISY = set(names.SAMPLER_OF) - DETERMINISTIC
ENDS_ABOVE_ZERO = {"dpm_fast", "dpm_adaptive"}
UNI_PC = {"uni_pc", "uni_pc_bh2"}
OWN_SIGMAS = {"simple", "ddim_uniform", "beta"}
"""Schedules that pick among the model's own 1000 sigmas."""
SECOND_ORDER = (
    *("heun", "dpm_2", "lms", "dpm_fast", "dpmpp_2m", "ipndm_v", "deis", "uni_pc", "uni_pc_bh2"),
    *("res_multistep", "dpmpp_2m_cfg_pp", "res_multistep_cfg_pp"),
)


def sample(name: str, x: Tensor, sigmas: Tensor, seed: int = 1) -> Tensor:
    """With the exact denoiser of a Gaussian, whose ODE has a closed solution."""
    needs_uncond = names.SAMPLER_OF[name].needs_uncond
    return sampled(sampling_of(name, x, sigmas, seed=seed), needs_uncond=needs_uncond)


def sampled(sampling: Sampling, *, needs_uncond: bool = False) -> Tensor:
    """The end of `sampling`; without guidance, so that the unconditional x0 is the same."""
    x, sigma = next(sampling)
    while True:
        try:
            x0 = x * SPREAD**2 / (SPREAD**2 + sigma**2)
            x, sigma = sampling.send(torch.stack([x0, x0]) if needs_uncond else x0)
        except StopIteration as stop:
            end: Tensor = stop.value
            return end


def error_of(name: str, steps: int) -> float:
    skips = names.SAMPLER_OF[name].discards_penultimate_sigma
    sigmas = sigmas_for(LEVELS, "karras", steps, discards_penultimate_sigma=skips)
    x = torch.full((1, 4, 2, 2), 7.0)
    end = sigmas[-2] if name in ENDS_ABOVE_ZERO else sigmas[-1]
    exact = x * ((SPREAD**2 + end**2) / (SPREAD**2 + sigmas[0] ** 2)).sqrt()
    return float((sample(name, x, sigmas) - exact).abs().max())


@pytest.mark.parametrize("name", sorted(DETERMINISTIC - {"dpm_adaptive"}))
def test_samplers_converge_to_the_exact_solution(name: str) -> None:
    assert error_of(name, 80) < error_of(name, 8)
    assert error_of(name, 80) < 0.02


def test_the_adaptive_sampler_keeps_its_tolerance_however_many_steps() -> None:
    assert error_of("dpm_adaptive", 1000) == pytest.approx(error_of("dpm_adaptive", 3), abs=1e-4)
    assert error_of("dpm_adaptive", 20) < 0.02


def test_the_adaptive_sampler_refuses_what_is_no_number() -> None:
    sampling = sampling_of(
        "dpm_adaptive", torch.ones(1, 4, 2, 2), sigmas_for(LEVELS, "normal", 4), seed=1
    )
    x, _ = next(sampling)
    sampling.send(x * torch.nan)
    sampling.send(x)
    with pytest.raises(ValueError, match="number"):
        sampling.send(x)


@pytest.mark.parametrize(("steps", "most"), [(2, 64), (150, 150)])
def test_the_adaptive_sampler_ends_where_no_step_is_good_enough(steps: int, most: int) -> None:
    x = torch.ones(1, 4, 2, 2)
    sampling = sampling_of("dpm_adaptive", x, sigmas_for(LEVELS, "normal", steps), seed=1)
    next(sampling)
    for call in range(3 * most - 1):
        sampling.send(torch.full_like(x, call % 2))
    with pytest.raises(ValueError, match=f"has not finished after {most} steps: use more"):
        sampling.send(x)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_second_order_is_closer_than_first(name: str) -> None:
    assert error_of(name, 20) < error_of("euler", 20) / 3


# ComfyUI's form of CFG++ in two stages drifts where guidance changes nothing, and so does ours.
@pytest.mark.parametrize("name", sorted(NOISY - {"lcm", "dpmpp_2s_ancestral_cfg_pp"}))
def test_noisy_samplers_end_in_the_models_distribution(name: str) -> None:
    skips = names.SAMPLER_OF[name].discards_penultimate_sigma
    sigmas = sigmas_for(LEVELS, "karras", 60, discards_penultimate_sigma=skips)
    x = torch.randn((1, 4, 64, 64), generator=torch.Generator().manual_seed(5)) * sigmas[0]
    found = sample(name, x, sigmas)
    assert float(found.mean()) == pytest.approx(0, abs=0.02)
    assert float(found.std()) == pytest.approx(SPREAD, rel=0.1)


@pytest.mark.parametrize("name", sorted(NOISY))
def test_the_noise_of_steps_is_that_of_the_seed(name: str) -> None:
    x, sigmas = torch.full((1, 4, 4, 4), 7.0), sigmas_for(LEVELS, "karras", 6)
    assert torch.equal(sample(name, x, sigmas), sample(name, x, sigmas))
    assert not torch.allclose(sample(name, x, sigmas), sample(name, x, sigmas, seed=2), atol=0.01)


def test_the_noise_of_steps_may_be_of_another_seed_unless_it_is_brownian() -> None:
    x, sigmas = torch.full((1, 4, 4, 4), 7.0), sigmas_for(LEVELS, "karras", 6)
    for name in NOISY:
        needs_uncond = names.SAMPLER_OF[name].needs_uncond
        found = [
            sampled(
                sampling_of(name, x, sigmas, seed=seed, step_noise=independent_noise(x, step_seed)),
                needs_uncond=needs_uncond,
            )
            for seed, step_seed in ((1, 2), (2, 2), (1, 1))
        ]
        same_as = 1 if names.SAMPLER_OF[name].noise == "independent" else 2
        assert torch.equal(found[0], found[same_as]), name
        assert not torch.equal(found[1], found[2]), name


def test_the_noise_of_rising_sigmas_is_that_of_falling_ones_reversed() -> None:
    x, sigmas = torch.zeros(1, 4, 8, 8), sigmas_for(LEVELS, "karras", 4)
    noise = brownian_noise(x, sigmas, 5)
    assert torch.equal(noise(sigmas[1], sigmas[2]), -noise(sigmas[2], sigmas[1]))


def test_independent_noise_begins_like_that_of_the_start() -> None:
    x = torch.zeros(2, 4, 3, 3)
    first = torch.randn(x.shape, generator=torch.Generator().manual_seed(7))
    noise = independent_noise(x, 7)
    assert torch.equal(noise(LEVELS.sigma_max, LEVELS.sigma_min), first)
    assert not torch.equal(noise(LEVELS.sigma_max, LEVELS.sigma_min), first)


def test_brownian_noise_adds_up_along_the_path() -> None:
    x, sigmas = torch.zeros(1, 4, 32, 32), sigmas_for(LEVELS, "karras", 8)
    noise = brownian_noise(x, sigmas, 2**64 - 1)
    parts = [noise(a, b) * (a - b).sqrt() for a, b in pairwise(sigmas[:-1])]
    whole = noise(sigmas[0], sigmas[-2]) * (sigmas[0] - sigmas[-2]).sqrt()
    assert torch.allclose(torch.stack(parts).sum(0), whole, atol=1e-4)
    assert float(noise(sigmas[0], sigmas[1]).std()) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("name", sorted(set(names.SAMPLER_OF) - ENDS_ABOVE_ZERO - UNI_PC))
def test_one_step_gives_the_models_first_estimate(name: str) -> None:
    x = torch.full((1, 1, 1, 1), 3.0)
    sigmas = sigmas_for(LEVELS, "normal", 1)
    expected = x * SPREAD**2 / (SPREAD**2 + sigmas[0] ** 2)
    assert torch.allclose(sample(name, x, sigmas), expected, atol=1e-3)


@pytest.mark.parametrize("name", sorted(UNI_PC))
def test_unipc_of_one_step_takes_none_like_that_of_comfyui(name: str) -> None:
    x, sigmas = torch.full((1, 1, 1, 1), 3.0), sigmas_for(LEVELS, "normal", 1)
    as_it_was = x / (sigmas[0] ** 2 + 1).sqrt()
    assert torch.allclose(sample(name, x, sigmas), as_it_was, rtol=1e-5)


def test_stochastic_adams_is_of_fourth_order_without_noise() -> None:
    def error(steps: int) -> float:
        sigmas = sigmas_for(LEVELS, "karras", steps)[:-1].double()
        x = torch.full((1, 4, 2, 2), 7.0, dtype=torch.float64)
        exact = x * ((SPREAD**2 + sigmas[-1] ** 2) / (SPREAD**2 + sigmas[0] ** 2)).sqrt()
        unused = independent_noise(x, 1)
        found = sampled(stochastic_adams(x, sigmas, unused, lambda _: 0.0))
        return float((found - exact).abs().max())

    assert error(160) < error(80) / 13 < error(40) / 13**2


@pytest.mark.parametrize("tau", [0.5, 1.0, 1.5])
def test_stochastic_adams_keeps_the_models_distribution_for_any_tau(tau: float) -> None:
    sigmas = sigmas_for(LEVELS, "karras", 60)
    x = torch.randn((1, 4, 64, 64), generator=torch.Generator().manual_seed(5)) * sigmas[0]
    found = sampled(stochastic_adams(x, sigmas, independent_noise(x, 6), lambda _: tau))
    assert float(found.std()) == pytest.approx(SPREAD, rel=0.05)


def test_variable_steps_are_weighted_as_their_authors_do() -> None:
    """The numbers are those of the published program for steps of these sizes."""
    one, two, three, four = (torch.tensor(-size) for size in (1.0, 2.0, 3.0, 5.0))
    assert ipndm_v_weights(one, []) == [1]
    assert ipndm_v_weights(one, [two]) == [1.25, -0.25]
    assert [float(w) for w in ipndm_v_weights(one, [two, three])] == pytest.approx(
        (26 / 15, -19 / 18, 29 / 90)
    )
    found = [float(w) for w in ipndm_v_weights(one, [two, three, four])]
    assert found == pytest.approx((727 / 400, -709 / 576, 391 / 900, -101 / 4320))


def test_cfg_plus_plus_takes_ddims_step_with_the_unconditional_noise() -> None:
    sigmas = torch.tensor([8.0, 2.0])
    kept, kept_next = (1 / (sigma**2 + 1) for sigma in sigmas)
    x, x0, x0_uncond = torch.randn((3, 1, 4, 2, 2), generator=torch.Generator().manual_seed(5))
    sampling = euler_cfg_pp(x, sigmas)
    next(sampling)
    with pytest.raises(StopIteration) as stop:
        sampling.send(torch.stack([x0, x0_uncond]))
    # In the paper's variance-preserving space.
    eps = (x * kept.sqrt() - kept.sqrt() * x0_uncond) / (1 - kept).sqrt()
    expected = kept_next.sqrt() * x0 + (1 - kept_next).sqrt() * eps
    assert torch.allclose(stop.value.value * kept_next.sqrt(), expected, atol=1e-5)


def test_heunpp2_never_looks_at_the_end_of_its_schedule() -> None:
    sigmas = torch.tensor([8.0, 4.0, 2.0, 1.0])
    sampling = sampling_of("heunpp2", torch.ones(1, 4, 2, 2), sigmas, seed=1)
    called_at = [float(next(sampling)[1])]
    called_at += [float(sampling.send(torch.zeros(1, 4, 2, 2))[1]) for _ in range(5)]
    assert called_at == [8, 4, 2, 4, 2, 2]
    with pytest.raises(StopIteration):
        sampling.send(torch.zeros(1, 4, 2, 2))


def test_the_models_noise_levels() -> None:
    assert float(LEVELS.sigma_min) == pytest.approx(0.0291672, rel=1e-5)
    assert float(LEVELS.sigma_max) == pytest.approx(14.614641, rel=1e-6)
    steps = torch.arange(1000)
    assert torch.equal(LEVELS.timestep_of(LEVELS.sigmas), steps)
    assert torch.allclose(LEVELS.sigma_at(steps.float()), LEVELS.sigmas, rtol=1e-5)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("steps", [1, 2, 20, 1500])
def test_schedules_fall_from_the_largest_sigma_to_zero(scheduler: str, steps: int) -> None:
    sigmas = sigmas_for(LEVELS, scheduler, steps)
    if scheduler not in OWN_SIGMAS or steps <= 20:
        assert len(sigmas) == steps + 1
    if scheduler != "ddim_uniform":
        assert float(sigmas[0]) == pytest.approx(float(LEVELS.sigma_max), rel=1e-5)
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


@pytest.mark.parametrize("steps", [38, 76, 122, 152, 174, 186, 198])
def test_simple_multiplies_a_rounded_distance(steps: int) -> None:
    """As in ComfyUI, a product that is just below an integer is rounded down."""
    found = LEVELS.timestep_of(sigmas_for(LEVELS, "simple", steps)[:-1]).tolist()
    exact = [999 - 1000 * i // steps for i in range(steps)]
    assert {a - b for a, b in zip(found, exact, strict=True)} == {0, 1}


def test_a_linear_quadratic_schedule_is_linear_in_its_first_half() -> None:
    done = 1 - sigmas_for(LEVELS, "linear_quadratic", 10) / LEVELS.sigma_max
    assert torch.allclose(done[:6], torch.linspace(0, 0.025, 6), atol=1e-6)
    assert torch.allclose(done[5:].diff().diff(), done[5:].diff().diff()[0], atol=1e-5)


def test_denoise_keeps_the_end_of_a_longer_schedule() -> None:
    assert torch.equal(sigmas_for(LEVELS, "karras", 6, 0.3), sigmas_for(LEVELS, "karras", 20)[-7:])
    assert len(sigmas_for(LEVELS, "karras", 6, 0.0)) == 0
    with pytest.raises(ValueError, match="denoise"):
        sigmas_for(LEVELS, "karras", 10_000, 1e-9)


@pytest.mark.parametrize("denoise", [1.0, 0.5])
def test_the_penultimate_sigma_is_discarded_where_a_sampler_wants_it_so(denoise: float) -> None:
    longer = (
        sigmas_for(LEVELS, "karras", 7) if denoise == 1 else sigmas_for(LEVELS, "karras", 13)[-8:]
    )
    found = sigmas_for(LEVELS, "karras", 6, denoise, discards_penultimate_sigma=True)
    assert torch.equal(found, torch.cat([longer[:-2], longer[-1:]]))
