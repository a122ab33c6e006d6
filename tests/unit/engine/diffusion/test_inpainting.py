"""What a noise mask and a batch index do, on their own and with the tiny checkpoint."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.conditioning.condition import Area, ConcatImage, Condition
from engine.diffusion.conditioning.fitting import fitted_conditionings
from engine.diffusion.families.stable_diffusion import SD1
from engine.diffusion.images.latent_operations import LatentOperations
from engine.diffusion.images.latents import Latent
from engine.diffusion.inpainting import KeptNoise, fitted_mask, inpainting, spread
from engine.diffusion.model import Model
from engine.diffusion.samplers.noise import shifted_seed, start_noise
from engine.diffusion.samplers.noise_levels import STABLE_DIFFUSION
from engine.diffusion.samplers.noise_sources import cpu_randn
from engine.diffusion.samplers.runge_kutta import euler
from engine.diffusion.trajectory import Guidance, NoiseConfig, SamplerSchedule, trajectory
from engine.errors import EngineError, TooLarge
from engine.executor import BODIES
from engine.graph.catalogue import Catalogue
from engine.graph.limits import Limits
from tests.support.engine.latents import latents_of
from tests.support.engine.workflows import text_to_image
from tests.support.patience import least_cpu_s

SHAPE = (1, 4, 8, 8)
CLEAN = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
MASK = torch.zeros(1, 64, 64)
MASK[..., 32:] = 1.0


def test_a_mask_of_any_size_is_fitted_to_the_latents() -> None:
    latents = torch.zeros(3, 4, 8, 8)
    for mask in (MASK, MASK[0], MASK[:, None], MASK.repeat(5, 1, 1)):
        fitted = fitted_mask(mask, latents)
        assert fitted.shape == (3, 1, 8, 8)
        assert torch.equal(fitted[..., :4], torch.zeros(3, 1, 8, 4))
        assert torch.equal(fitted[..., 4:], torch.ones(3, 1, 8, 4))
    two = torch.stack([MASK[0], 1 - MASK[0]])
    assert torch.equal(fitted_mask(two, latents)[:, 0, 0, 0], torch.tensor([0.0, 1.0, 0.0]))


def test_where_the_mask_is_0_the_model_gets_the_latent_with_its_noise() -> None:
    noise, sigmas = cpu_randn(1)(CLEAN.shape), torch.tensor([8.0, 2.0, 0.0])
    mask = fitted_mask(MASK, CLEAN)
    masked = inpainting(euler(CLEAN + 8 * noise, sigmas), mask, CLEAN, KeptNoise(noise))
    x, sigma = next(masked)
    assert torch.allclose(x, CLEAN + 8 * noise)
    x, sigma = masked.send(torch.full(SHAPE, 9.0))
    assert float(sigma) == 2.0
    assert torch.allclose(x[..., :4], (CLEAN + 2 * noise)[..., :4])
    assert not torch.allclose(x[..., 4:], (CLEAN + 2 * noise)[..., 4:])
    with pytest.raises(StopIteration) as stop:
        masked.send(torch.full(SHAPE, 9.0))
    assert torch.allclose(stop.value.value[..., :4], CLEAN[..., :4])
    assert torch.allclose(stop.value.value[..., 4:], torch.tensor(9.0))


def sampled(catalogue: Catalogue, latent: Latent, *samplers: dict[str, Any]) -> list[Tensor]:
    bodies = {**BODIES, "EmptyLatentImage": lambda *_, **__: (latent,)}
    prompts = [text_to_image(**sampler) for sampler in samplers]
    return [torch.from_numpy(each) for each in latents_of(prompts, catalogue, bodies)]


@pytest.mark.parametrize("denoise", [1.0, 0.6])
def test_every_sampler_keeps_what_the_mask_leaves_out(catalogue: Catalogue, denoise: float) -> None:
    names = ("euler", "ddim", "dpm_2", "euler_ancestral", "dpmpp_2m_sde", "uni_pc", "dpm_fast")
    samplers = [{"sampler_name": name, "denoise": denoise} for name in names]
    found = sampled(catalogue, Latent(CLEAN, noise_mask=MASK), *samplers)
    for name, latent in zip(names, found, strict=True):
        # Two of them end at 0.03 and 0.001, which counts five times in the scale of latents.
        kept, free = (latent - CLEAN).abs().split(4, dim=3)
        assert float(kept.max()) < (0.7 if name in ("uni_pc", "dpm_fast") else 1e-4), name
        assert float(free.mean()) > 0.1, name
    assert not torch.allclose(found[0], found[1]), "ddim has mask noise of its own"


def test_a_sampler_that_has_nothing_to_do_leaves_the_noise(catalogue: Catalogue) -> None:
    """The adaptive one ends at the smallest sigma above 0, which with one step is the first."""
    one_step = {"sampler_name": "dpm_adaptive", "steps": 1}
    masked, whole = (
        sampled(catalogue, Latent(CLEAN, noise_mask=mask), one_step)[0] for mask in (MASK, None)
    )
    assert torch.equal(masked, whole)
    assert float(whole.std()) > 10


def test_without_a_mask_ddim_is_euler(catalogue: Catalogue) -> None:
    samplers = [{"sampler_name": name} for name in ("euler", "ddim")]
    assert torch.allclose(*sampled(catalogue, Latent(CLEAN), *samplers), atol=1e-5)


def test_a_row_takes_the_noise_that_its_index_says(catalogue: Catalogue) -> None:
    (both,) = sampled(catalogue, Latent(torch.zeros(2, 4, 8, 8)), {})
    (second,) = sampled(catalogue, Latent(torch.zeros(1, 4, 8, 8), batch_index=(1,)), {})
    assert torch.allclose(second[0], both[1], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(second[0], both[0], atol=0.1)


@pytest.mark.parametrize("side", [8, 5])
def test_indices_pick_among_draws_one_after_the_other(side: int) -> None:
    samples = torch.zeros(3, 4, side, 7)
    picked = start_noise(Latent(samples, batch_index=(2, 0, 2)), cpu_randn(9))
    generator = torch.Generator().manual_seed(9)
    draws = [torch.randn((4, side, 7), generator=generator) for _ in range(3)]
    assert torch.equal(picked, torch.stack([draws[2], draws[0], draws[2]]))


def test_an_index_that_grew_by_batches_of_batches_is_refused() -> None:
    """Each time it is repeated, cut and joined it grows eightfold."""
    operations = LatentOperations(Limits())
    first = operations.empty(64, 64, 1)
    latent = operations.joined(first, first)
    for _ in range(30):
        last = operations.batch_slice(operations.repeated(latent, 8), 15, 1)
        latent = operations.joined(first, last)

    def draw() -> None:
        with pytest.raises(TooLarge, match="too long to draw"):
            start_noise(latent, cpu_randn(9))

    assert least_cpu_s(draw) < 0.5


def test_the_seed_after_the_largest_is_the_first() -> None:
    assert shifted_seed(2**64 - 1, 1) == 0
    assert shifted_seed(0, -1) == 2**64 - 1


class NoisePredictor(nn.Module):
    """A UNet that keeps its inputs."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(in_channels=channels, cross_attention_dim=8)
        self.weight = nn.Parameter(torch.zeros(1))
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor, *_: Any, **__: Any) -> tuple[Tensor]:
        self.inputs.append(x)
        return (torch.zeros_like(x[:, :4]),)


def inputs_of(channels: int, *conditions: Condition, mask: Tensor | None = None) -> list[Tensor]:
    """The inputs that a UNet with so many channels gets for conditions of one conditioning."""
    predictor = NoisePredictor(channels)
    work = trajectory(
        Model(predictor, SD1(), latent_scale=2.0),
        Latent(CLEAN, noise_mask=mask),
        SamplerSchedule("euler", torch.tensor([8.0, 0.0])),
        guidance=Guidance(conditions, (), 1.0),
        noise_config=NoiseConfig(1),
        on_sigmas_passed=lambda _: None,
    )
    request = next(work)
    (x0,) = type(request).run_batch([request])
    with pytest.raises(StopIteration):
        work.send(x0)
    return predictor.inputs


TEXT = Condition(torch.zeros(1, 77, 8))
GREY = torch.tensor([0.8223, -0.6876, 0.6364, 0.1380])[:, None, None].expand_as(CLEAN)


@pytest.mark.parametrize("mask", [MASK, None])
def test_an_inpainting_model_gets_the_mask_and_the_latent_outside(mask: Tensor | None) -> None:
    area = replace(TEXT, area=Area(8, 4, 0, 4))
    window, whole = sorted(inputs_of(9, area, TEXT, mask=mask), key=lambda each: each.shape[3])
    expected = fitted_mask(MASK, CLEAN) if mask is not None else torch.ones(1, 1, 8, 8)
    assert torch.equal(whole[:, 4:5], expected)
    assert torch.equal(whole[:, 5:], CLEAN * 2 if mask is not None else GREY)
    assert torch.equal(window[:, 4:], whole[:, 4:, :, 4:])


@pytest.mark.parametrize("mask", [MASK, None])
def test_the_picture_of_a_text_replaces_the_latent_and_its_mask(mask: Tensor | None) -> None:
    soft = 1 - 0.4 * MASK
    image = ConcatImage(CLEAN.flip(3), soft)
    (given,) = inputs_of(9, replace(TEXT, concat_image=image), mask=mask)
    assert torch.equal(given[:, 4:5], fitted_mask(soft, CLEAN).round())
    assert torch.equal(given[:, 5:], CLEAN.flip(3) * 2)
    (own,) = inputs_of(9, replace(TEXT, concat_image=ConcatImage(CLEAN.flip(3))), mask=mask)
    assert torch.equal(own[:, 5:], GREY if mask is None else CLEAN.flip(3) * 2)
    assert torch.equal(
        own[:, 4:5],
        torch.ones_like(soft[None, :, :8, :8]) if mask is None else fitted_mask(MASK, CLEAN),
    )


def test_an_instruction_model_gets_the_picture_without_a_scale() -> None:
    image = ConcatImage(CLEAN.flip(3), MASK)
    with_picture, without = replace(TEXT, concat_image=image), TEXT
    given = torch.cat(inputs_of(8, with_picture, without, mask=MASK))
    assert torch.equal(given[:, 4:], torch.cat([CLEAN.flip(3), torch.zeros(SHAPE)]))


def test_cosxl_edit_gets_the_picture_with_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoisePredictor, "scales_pictures", True, raising=False)
    (given,) = inputs_of(8, replace(TEXT, concat_image=ConcatImage(CLEAN.flip(3))))
    assert torch.equal(given[:, 4:], CLEAN.flip(3) * 2)


def test_other_models_ignore_the_picture() -> None:
    image = ConcatImage(torch.zeros(1, 16, 8, 8), MASK)
    (given,) = inputs_of(4, replace(TEXT, concat_image=image))
    assert given.shape == SHAPE


@pytest.mark.parametrize("channels", [8, 9])
def test_a_picture_for_another_model_is_refused(channels: int) -> None:
    image = ConcatImage(torch.zeros(1, 16, 8, 8))
    with pytest.raises(EngineError, match="16 channels, but Stable Diffusion 1 needs 4"):
        inputs_of(channels, replace(TEXT, concat_image=image))


def test_a_picture_of_another_size_keeps_its_middle() -> None:
    wide = torch.arange(16.0).expand(1, 4, 8, 16)
    (given,) = inputs_of(8, replace(TEXT, concat_image=ConcatImage(wide)))
    assert torch.equal(given[:, 4:], wide[..., 4:12])


def test_an_area_gets_the_picture_of_the_text_that_covers_it() -> None:
    """The negative text has no area, so its copy for the area has its own picture."""
    like, levels = torch.zeros(SHAPE), STABLE_DIFFUSION
    positive, negative = (replace(TEXT, concat_latent=torch.full(SHAPE, v)) for v in (1.0, 2.0))
    area = replace(positive, area=Area(8, 4, 0, 4))
    _, fitted = fitted_conditionings((area, positive), (negative,), like, levels)
    assert [each.area for each in fitted] == [None, area.area]
    assert all(each.condition.concat_latent is negative.concat_latent for each in fitted)


@pytest.mark.parametrize(
    ("own", "count", "expected"),
    [(1, 3, [0, 0, 0]), (2, 4, [0, 0, 1, 1]), (5, 3, [0, 2, 4]), (4, 1, [0]), (3, 3, [0, 1, 2])],
)
def test_pictures_are_spread_over_a_batch(own: int, count: int, expected: list[int]) -> None:
    assert spread(torch.arange(own), count).tolist() == expected
