"""The noise of a trajectory, read off the model calls of a sampler that adds noise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.conditioning.condition import Condition, controlled
from engine.diffusion.conditioning.control_net import Control
from engine.diffusion.conditioning.guidance import PerpNeg, ThirdConditioning
from engine.diffusion.denoise import Denoise
from engine.diffusion.families.stable_diffusion import SD1
from engine.diffusion.images.latents import Latent
from engine.diffusion.model import Model
from engine.diffusion.samplers.ancestral import ancestral_step
from engine.diffusion.samplers.noise_sources import (
    NoiseSources,
    Randn,
    comfyui_sources,
    cpu_randn,
    webui_sources,
)
from engine.diffusion.samplers.philox import Philox
from engine.diffusion.trajectory import Guidance, NoiseConfig, SamplerSchedule, trajectory
from engine.graph.names import SAMPLER_OF
from tests.support.engine.control_nets import picture, tiny_control_net

SHAPE = (1, 4, 8, 8)
SIGMAS = torch.tensor([8.0, 2.0, 0.0])
SEED = 11
COMFYUI = comfyui_sources(SAMPLER_OF["euler_ancestral"])


class Unused(nn.Module):
    """A UNet that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(in_channels=4, cross_attention_dim=8)
        self.weight = nn.Parameter(torch.zeros(1))


def noises_of(config: NoiseConfig) -> tuple[Tensor, Tensor]:
    """The noise at the start and that of the first step, if the model returns x as x0."""
    text = (Condition(torch.zeros(1, 77, 8)),)
    work = trajectory(
        Model(Unused(), SD1(), latent_scale=1.0),
        Latent(torch.zeros(SHAPE)),
        SamplerSchedule("euler_ancestral", SIGMAS),
        guidance=Guidance(text, text, 7.0),
        noise_config=config,
        on_sigmas_passed=lambda _: None,
    )
    first = next(work).x
    second = work.send(first).x
    _, sigma_up = ancestral_step(SIGMAS[0], SIGMAS[1])
    return first / SIGMAS[0], (second - first) / sigma_up


def drawn(draw: Randn, count: int) -> list[Tensor]:
    return [draw(SHAPE) for _ in range(count)]


CPU = drawn(cpu_randn(SEED), 2)
NV = drawn(Philox(SEED).randn, 2)


@pytest.mark.parametrize(
    ("sources", "offset", "expected"),
    [
        (COMFYUI, 0, (CPU[0], CPU[0])),
        (COMFYUI, 1, (CPU[0], *drawn(cpu_randn(SEED + 1), 1))),
        (NoiseSources(step="philox"), 0, (CPU[0], NV[0])),
        (webui_sources("GPU"), None, CPU),
        (webui_sources("CPU"), None, CPU),
        (webui_sources("NV"), None, NV),
        (webui_sources("NV"), 3, (NV[0], *drawn(Philox(SEED + 3).randn, 1))),
    ],
    ids=range(7),
)
def test_noise_is_drawn_from_its_source(
    sources: NoiseSources, offset: int | None, expected: tuple[Tensor, Tensor]
) -> None:
    config = NoiseConfig(SEED, step_seed_offset=offset, sources=sources, scale="sigma")
    for found, draw in zip(noises_of(config), expected, strict=True):
        assert torch.allclose(found, draw, atol=1e-5)


def test_a_third_conditioning_of_a_guider_gets_the_shared_control_net() -> None:
    """The third conditioning of a model does not get it."""
    text = (Condition(torch.zeros(1, 77, 8)),)
    control = Control(tiny_control_net(1), picture(0), 1.0, applies_to_uncond=True)
    positive, third = controlled(text, control), ThirdConditioning(text, PerpNeg(1.0))
    model = Model(Unused(), SD1(), latent_scale=1.0)
    guidance = Guidance(positive, text, 7.0)
    for given, guided, expected in (
        (model, replace(guidance, third_conditioning=third), [(control,)] * 3),
        (replace(model, third_conditioning=third), guidance, [(control,), (control,), ()]),
    ):
        work = trajectory(
            given,
            Latent(torch.zeros(SHAPE)),
            SamplerSchedule("euler", SIGMAS),
            guidance=guided,
            noise_config=NoiseConfig(SEED),
            on_sigmas_passed=lambda _: None,
        )
        request = next(work)
        assert isinstance(request, Denoise)
        assert [one[0].condition.controls for one in request.conditionings] == expected
