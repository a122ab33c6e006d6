"""A model's prediction, noise levels and guidance, and the schedules of nodes, by closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.conditioning.condition import Condition
from engine.diffusion.conditioning.fitting import fitted_conditionings
from engine.diffusion.conditioning.guidance import rescaled_cfg
from engine.diffusion.denoise import Denoise
from engine.diffusion.families.stable_diffusion import SD1
from engine.diffusion.model import Model, Prediction
from engine.diffusion.samplers.noise_levels import (
    STABLE_DIFFUSION,
    ContinuousLevels,
    continuous_levels,
    scaled_linear_sigmas,
    stable_diffusion,
)
from engine.diffusion.samplers.schedules import sigmas_for
from engine.diffusion.samplers.sigmas import aligned, laplace
from engine.graph import names
from engine.graph.catalogue import Catalogue
from engine.nodes.custom_sampling import laplace_scheduler
from engine.nodes.model_patches import (
    model_sampling_continuous_edm,
    model_sampling_discrete,
    rescale_cfg,
)
from tests.support.engine.latents import farthest, shared_images
from tests.support.engine.workflows import node, text_to_image

ZERO_TERMINAL = stable_diffusion(zero_terminal=True)
CONSISTENCY = stable_diffusion(consistency=True)


def signal(sigmas: Tensor) -> Tensor:
    """sqrt of alpha bar."""
    return 1 / (sigmas.double() ** 2 + 1).sqrt()


def test_equal_settings_have_one_identity_so_that_jobs_share_calls() -> None:
    assert continuous_levels(120.0, 0.002, "log") is LOG
    assert stable_diffusion(consistency=False, zero_terminal=False) is STABLE_DIFFUSION
    assert stable_diffusion(zero_terminal=False, consistency=True) is CONSISTENCY
    model = Model(None, SD1(), 1.0)
    for sampling in ("eps", "v_prediction", "lcm", "x0", "img_to_img"):
        for zsnr in (False, True):
            one, other = (
                model_sampling_discrete.body(None, model, sampling, zsnr)[0] for _ in range(2)
            )
            assert one.levels is other.levels
            assert one.prediction == other.prediction
            assert one.unet is model.unet


def test_a_zero_terminal_snr_rescales_the_signal() -> None:
    before, after = signal(STABLE_DIFFUSION.sigmas), signal(ZERO_TERMINAL.sigmas)
    # Algorithm 1: shifted so that the last is none, scaled so that the first is as it was.
    assert float(after[0]) == pytest.approx(float(before[0]), rel=1e-6)
    expected = (before - before[-1]) * before[0] / (before[0] - before[-1])
    assert torch.allclose(after[:-1], expected[:-1], atol=1e-6)
    assert float(after[-1]) < 3e-4
    assert float(ZERO_TERMINAL.sigma_max) == pytest.approx(4518.7, abs=0.1)
    assert torch.equal(ZERO_TERMINAL.timestep_of(ZERO_TERMINAL.sigmas), torch.arange(1000))


def test_consistency_timesteps_are_every_twentieth_from_the_last() -> None:
    steps = torch.arange(19, 1000, 20)
    assert len(CONSISTENCY.sigmas) == 50
    assert torch.equal(CONSISTENCY.sigmas, scaled_linear_sigmas()[steps].float())
    assert torch.equal(CONSISTENCY.timestep_of(CONSISTENCY.sigmas), steps)
    assert torch.allclose(CONSISTENCY.sigma_at(steps.float()), CONSISTENCY.sigmas)
    halfway = CONSISTENCY.sigma_at(torch.tensor([29.0]))
    assert float(halfway) == pytest.approx(float(CONSISTENCY.sigmas[:2].prod().sqrt()), rel=1e-5)
    assert (CONSISTENCY.first_timestep, CONSISTENCY.last_timestep) == (19, 999)


@pytest.mark.parametrize("scheduler", sorted(names.SCHEDULER_OF))
@pytest.mark.parametrize("levels", [ZERO_TERMINAL, CONSISTENCY], ids=["zsnr", "lcm"])
def test_schedules_fall_over_these_noise_levels_too(levels: Any, scheduler: str) -> None:
    sigmas = sigmas_for(levels, scheduler, 8)
    assert bool((sigmas[:-1] > sigmas[1:]).all())
    assert float(sigmas[-2]) >= float(levels.sigma_min) * 0.999
    if scheduler != "ddim_uniform":
        assert float(sigmas[0]) == pytest.approx(float(levels.sigma_max), rel=1e-3)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("simple", [999, 759, 499, 259]),
        ("sgm_uniform", [999, 759, 499, 259]),
        ("normal", [999, 679, 339, 19]),
    ],
)
def test_the_training_steps_of_a_consistency_model(scheduler: str, expected: list[int]) -> None:
    found = CONSISTENCY.timestep_of(sigmas_for(CONSISTENCY, scheduler, 4)[:-1])
    assert (found - torch.tensor(expected)).abs().max() <= 20


@pytest.mark.parametrize(
    "prediction", ["epsilon", "v_prediction", "sample", "consistency", "image_to_image"]
)
def test_a_perfect_prediction_gives_x0(prediction: Prediction) -> None:
    generator = torch.Generator().manual_seed(1)
    x0, noise = (torch.randn((3, 4, 2, 2), generator=generator) for _ in range(2))
    levels = CONSISTENCY if prediction == "consistency" else STABLE_DIFFUSION
    model = Model(None, SD1(), 1.0, levels, prediction)
    sigma = torch.tensor([14.6146, 1.0, levels.sigma_min])[:, None, None, None]
    x = x0 + sigma * noise
    alpha = 1 / (sigma**2 + 1).sqrt()
    outputs = {
        "epsilon": noise,
        "consistency": noise,
        "v_prediction": alpha * noise - sigma * alpha * x0,
        "sample": x0,
        "image_to_image": x0,
    }
    # A consistency model keeps 7e-6 of x at its smallest sigma, and takes 1.3e-3 of x0 away.
    assert torch.allclose(model.denoised(x, outputs[prediction], sigma), x0, atol=1e-4)
    scaled = model.scaled_input(x, sigma)
    assert torch.allclose(scaled, x if prediction == "image_to_image" else alpha * x)


def test_a_consistency_model_has_its_boundary_scalings() -> None:
    model = Model(None, SD1(), 1.0, CONSISTENCY, "consistency")
    sigma = CONSISTENCY.sigmas[[0, 10]][:, None, None, None]
    x, output = torch.full((2, 1, 1, 1), 3.0), torch.full((2, 1, 1, 1), 0.5)
    for place, timestep in enumerate((19, 219)):
        time, x0 = 10.0 * timestep, 3.0 - float(sigma[place]) * 0.5
        expected = 0.25 / (time**2 + 0.25) * 3.0 + time / (time**2 + 0.25) ** 0.5 * x0
        assert float(model.denoised(x, output, sigma)[place]) == pytest.approx(expected, rel=1e-6)


def velocity(x: Tensor, x0: Tensor, sigma: float) -> Tensor:
    """Of a latent of unit variance."""
    return (x / (sigma**2 + 1) - x0) * (sigma**2 + 1) ** 0.5 / sigma


def test_rescaled_guidance_has_the_spread_of_the_conditional_velocity() -> None:
    generator = torch.Generator().manual_seed(1)
    x, conditional, unconditional = (
        torch.randn((2, 4, 8, 8), generator=generator) for _ in range(3)
    )
    sigma = 2.5
    guided = unconditional + 7.0 * (conditional - unconditional)
    wanted = velocity(x, conditional, sigma).std((1, 2, 3))
    before = velocity(x, guided, sigma)
    for phi in (0.0, 0.7, 1.0):
        rescaled = rescaled_cfg(guided, conditional, x=x, sigma=torch.tensor(sigma), phi=phi)
        after = velocity(x, rescaled, sigma)
        spread = phi * wanted + (1 - phi) * before.std((1, 2, 3))
        assert torch.allclose(after.std((1, 2, 3)), spread, rtol=1e-4)
        factor = (spread / before.std((1, 2, 3)))[:, None, None, None]
        assert torch.allclose(after, before * factor, atol=1e-3)


class Doubles(nn.Module):
    """A UNet whose output is twice its input, and more by the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0), requires_grad=False)

    def forward(self, x: Tensor, timesteps: Tensor, tokens: Tensor, **_: Any) -> tuple[Tensor]:
        return (self.weight * x + tokens[:, :1, :1, None] * x.abs(),)


def test_guidance_is_rescaled_for_the_patched_model_alone() -> None:
    model = Model(Doubles(), SD1(), 1.0)
    (patched,) = rescale_cfg.body(None, model, 0.7)
    x = torch.randn((1, 4, 4, 4), generator=torch.Generator().manual_seed(1))
    texts = [(Condition(torch.full((1, 77, 4), value)),) for value in (1.0, 0.0)]
    conditionings = fitted_conditionings(*texts, x, model.levels)
    sigma = torch.tensor(2.0)
    requests = [Denoise(each, x, sigma, *conditionings, 7.0) for each in (model, patched)]
    assert requests[0].key == requests[1].key
    plain, found = Denoise.run_batch(requests)
    (conditional,) = Denoise.run_batch([replace(requests[0], cfg=1.0)])
    expected = rescaled_cfg(plain, conditional, x=x, sigma=sigma, phi=0.7)
    assert torch.allclose(found, expected)
    assert not torch.allclose(found, plain, atol=0.1)


def test_workflows_with_it_give_the_same_alone_and_among_others(catalogue: Catalogue) -> None:
    def with_patch(class_type: str, **inputs: Any) -> dict[str, Any]:
        prompt = text_to_image(model=["10", 0], cfg=3.0)
        return prompt | {"10": node(class_type, model=["4", 0], **inputs)}

    plain = text_to_image(cfg=3.0)
    kinds = [(kind, False) for kind in ("v_prediction", "lcm", "x0", "img_to_img")]
    patched = [
        with_patch("ModelSamplingDiscrete", sampling=kind, zsnr=zsnr)
        for kind, zsnr in [*kinds, ("v_prediction", True), ("eps", True)]
    ]
    patched.append(with_patch("RescaleCFG", multiplier=0.7))
    unchanged = with_patch("ModelSamplingDiscrete", sampling="eps", zsnr=False)
    first, same, *others = shared_images([plain, unchanged, *patched], catalogue)
    assert farthest(first, same) <= 1
    assert min(farthest(first, other) for other in others) > 1


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
    for declared, least, message in (
        (laplace_scheduler, 2.0, "above sigma_max"),
        (model_sampling_continuous_edm, 0.0, "above 0"),
    ):
        assert declared.check is not None
        with pytest.raises(ValueError, match=message):
            declared.check({"sigma_min": least, "sigma_max": 1.0})


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
