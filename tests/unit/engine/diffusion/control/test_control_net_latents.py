"""Latents with ControlNets: those of diffusers' pipeline, and equal ones in shared calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionControlNetPipeline
from torch import Tensor

from engine.diffusion.conditioning.condition import Conditioning
from engine.diffusion.conditioning.controls import controlled
from engine.diffusion.conditioning.placement import placed_conditionings
from engine.diffusion.control.control_net import Control
from engine.diffusion.denoise import Denoise
from engine.diffusion.loading.checkpoints import Checkpoint
from engine.diffusion.model import Model
from engine.diffusion.samplers.runge_kutta import euler
from engine.diffusion.samplers.schedules import sigmas_for
from engine.nodes.control import control_net_apply, control_net_apply_advanced
from tests.support.engine.control_nets import noise, picture, text
from tests.support.engine.latents import psnr_db_of
from training.single_file import SCHEDULER

pytestmark = [
    pytest.mark.usefixtures("inference"),
    # diffusers' scheduler calls NumPy in an outdated way.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

STEPS = 4
"""Their sigmas are those of whole training steps, where diffusers and ComfyUI round alike."""
CFG = 7.0


def sampled(model: Model, positive: Conditioning, negative: Conditioning) -> Tensor:
    """The latent that is sampled from `noise`."""
    sigmas = sigmas_for(model.levels, "normal", STEPS)
    sampling = euler(noise() * (1 + sigmas[0] ** 2).sqrt(), sigmas)
    x, sigma = next(sampling)
    conditionings = placed_conditionings(positive, negative, x, model.levels)
    while True:
        (x0,) = Denoise.run_batch([Denoise(model, x, sigma, *conditionings, CFG)])
        try:
            x, sigma = sampling.send(x0)
        except StopIteration as stop:
            found: Tensor = stop.value
            return found


def by_diffusers(
    checkpoint: Checkpoint,
    networks: Sequence[Any],
    hints: Sequence[Tensor],
    strengths: Sequence[float],
    /,
    *,
    percents: tuple[float, float],
) -> Tensor:
    levels = checkpoint.model.levels
    pipeline = StableDiffusionControlNetPipeline(
        vae=checkpoint.vae.autoencoder,
        text_encoder=None,
        tokenizer=None,
        unet=checkpoint.model.unet,
        controlnet=list(networks),
        scheduler=EulerDiscreteScheduler(**SCHEDULER),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    # The pipeline scales noise by the largest sigma only.
    scale = (1 + levels.sigma_max**2).sqrt() / levels.sigma_max
    found: Tensor = pipeline(
        prompt_embeds=text(1)[0].tokens,
        negative_prompt_embeds=text(2)[0].tokens,
        image=[hint.movedim(-1, 1) for hint in hints],
        controlnet_conditioning_scale=list(strengths),
        control_guidance_start=percents[0],
        control_guidance_end=percents[1],
        num_inference_steps=STEPS,
        guidance_scale=CFG,
        latents=noise() * scale,
        output_type="latent",
    ).images
    return found


@pytest.mark.parametrize(
    ("strengths", "percents"),
    [((1.0,), (0.0, 1.0)), ((0.4,), (0.25, 0.75)), ((0.8, 0.5), (0.0, 0.5))],
)
def test_latents_are_those_of_diffusers(
    strengths: tuple[float, ...],
    percents: tuple[float, float],
    checkpoint: Checkpoint,
    networks: tuple[Any, Any],
) -> None:
    used = networks[: len(strengths)]
    hints = [picture(seed) for seed in range(len(strengths))]
    positive, negative = text(1), text(2)
    for network, hint, strength in zip(used, hints, strengths, strict=True):
        positive, negative = control_net_apply_advanced.body(
            None,
            positive=positive,
            negative=negative,
            control_net=network,
            image=hint,
            strength=strength,
            start_percent=percents[0],
            end_percent=percents[1],
        )
    found = sampled(checkpoint.model, positive, negative)
    expected = by_diffusers(checkpoint, used, hints, strengths, percents=percents)
    assert psnr_db_of(found.numpy(), expected.numpy()) > 100
    without = sampled(checkpoint.model, text(1), text(2))
    assert psnr_db_of(without.numpy(), expected.numpy()) < 40


def test_the_old_node_guides_uncond_too(checkpoint: Checkpoint, networks: tuple[Any, Any]) -> None:
    apply = {"control_net": networks[0], "image": picture(0), "strength": 1.0}
    (positive,) = control_net_apply.body(None, conditioning=text(1), **apply)
    found = sampled(checkpoint.model, positive, text(2))
    expected = by_diffusers(checkpoint, networks[:1], [picture(0)], [1.0], percents=(0.0, 1.0))
    assert psnr_db_of(found.numpy(), expected.numpy()) > 100


def test_rows_with_and_without_share_calls_and_get_what_they_get_alone(
    checkpoint: Checkpoint, networks: tuple[Any, Any]
) -> None:
    model, x = checkpoint.model, noise()
    conditionings = [
        text(1),
        controlled(text(2), Control(networks[0], picture(1), 1.0)),
        controlled(text(3), Control(networks[0], picture(2, 80, 40), 0.5)),
        controlled(
            controlled(text(4), Control(networks[0], picture(3), 0.7)),
            Control(networks[1], picture(4), 1.2, (0.0, 0.9)),
        ),
    ]
    asked = [
        Denoise(
            model,
            x * sigma,
            torch.tensor(sigma),
            *placed_conditionings(each, text(5), x, model.levels),
            3.0,
        )
        for each, sigma in zip(conditionings, (9.0, 7.0, 3.0, 1.0), strict=True)
    ]
    with counted(model.unet, *networks) as calls:
        together = Denoise.run_batch(asked)
    assert calls == {model.unet: 1, networks[0]: 1, networks[1]: 1}
    assert len({request.key for request in asked}) == 1
    for request, found in zip(asked, together, strict=True):
        (alone,) = Denoise.run_batch([request])
        assert torch.allclose(found, alone, atol=1e-4)


class counted:  # noqa: N801 - reads as a verb where it is used
    """Counts the calls of each network."""

    def __init__(self, *networks: Any) -> None:
        self.networks = networks

    def __enter__(self) -> dict[Any, int]:
        self.calls = dict.fromkeys(self.networks, 0)
        self.hooks = [each.register_forward_pre_hook(self._count) for each in self.networks]
        return self.calls

    def _count(self, network: Any, _inputs: Any) -> None:
        self.calls[network] += 1

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
