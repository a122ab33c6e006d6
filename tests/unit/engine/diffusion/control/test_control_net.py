"""ControlNets against diffusers' pipeline on the same weights, and how jobs share their calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionControlNetPipeline
from torch import Tensor

from engine.diffusion.conditioning.condition import Area, Condition, Conditioning
from engine.diffusion.conditioning.controls import controlled, with_shared_controls
from engine.diffusion.conditioning.placement import placed_conditionings
from engine.diffusion.control.control_net import Control, residuals
from engine.diffusion.denoise import Denoise
from engine.diffusion.loading.checkpoints import Checkpoint, load_checkpoint
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.model import Model
from engine.diffusion.samplers.runge_kutta import euler
from engine.diffusion.samplers.schedules import sigmas_for
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from engine.nodes.control import control_net_apply, control_net_apply_advanced
from tests.support.engine.control_nets import tiny_control_net
from tests.support.engine.latents import all_latents_and_images, psnr_db_of
from tests.support.engine.workflows import TINY, node, text_to_image
from training.single_file import SCHEDULER

# diffusers' scheduler calls numpy in an old way.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

STEPS = 4
"""They fall on whole training steps: elsewhere diffusers and ComfyUI round in unlike ways."""
CFG = 7.0
Prompt = dict[str, Any]


@pytest.fixture(scope="module", autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def checkpoint(tiny_root: Path) -> Checkpoint:
    return load_checkpoint(ModelStore(ModelsFolder(tiny_root), torch.device("cpu"), 2**30), TINY)


@pytest.fixture(scope="module")
def networks() -> tuple[Any, Any]:
    return tiny_control_net(1), tiny_control_net(2)


@pytest.fixture(scope="module")
def controlled_catalogue(
    tiny_root: Path, networks: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory
) -> Catalogue:
    """The tiny checkpoint and the two networks, in folders as diffusers writes them."""
    root = tmp_path_factory.mktemp("controlled")
    (root / "checkpoints").symlink_to(tiny_root / "checkpoints")
    for name, network in zip(("one", "two"), networks, strict=True):
        network.save_pretrained(root / "controlnet" / name)
    return Catalogue(ModelsFolder(root))


def picture(seed: int, height: int = 64, width: int = 64) -> Tensor:
    return torch.rand((1, height, width, 3), generator=torch.Generator().manual_seed(seed))


def text(seed: int) -> Conditioning:
    generator = torch.Generator().manual_seed(seed)
    return (Condition(torch.randn((1, 77, 64), generator=generator)),)


def sampled(model: Model, positive: Conditioning, negative: Conditioning) -> Tensor:
    """The clean latent of noise of seed 3."""
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


def noise() -> Tensor:
    return torch.randn((1, 4, 8, 8), generator=torch.Generator().manual_seed(3))


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
    # It scales noise by the largest sigma alone.
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


def test_shared_controls_take_turns_and_leave_areas_and_own_ones_alone() -> None:
    one, two, own = (
        Control(None, picture(0), 1.0, applies_to_uncond=each) for each in (True, True, False)
    )
    area = (replace(text(1)[0], area=Area(1, 1, 0, 0)),)
    positive = controlled(text(1), one) + controlled(text(1), two) + controlled(area, one)
    negative = area + text(2) + text(3)
    assert [each.controls for each in with_shared_controls(positive, negative)] == [
        (),
        (one,),
        (two,),
    ]
    taken = controlled(text(2), own)
    assert with_shared_controls(positive, taken) is taken
    assert with_shared_controls(positive, area) is area
    assert with_shared_controls(controlled(text(1), own), text(2))[0].controls == ()


def test_a_picture_is_cut_around_its_middle_and_pictures_take_turns(
    networks: tuple[Any, Any],
) -> None:
    columns = torch.arange(96.0).expand(48, 96)[None, :, :, None].expand(2, 48, 96, 3)
    hint = columns + torch.tensor([0.0, 1000.0])[:, None, None, None]
    control = Control(networks[0], hint, 1.0)
    found = control.hint_for(torch.zeros(3, 4, 12, 12))
    assert found.shape == (3, 3, 96, 96)
    assert torch.equal(found[0, 0, 0], torch.arange(24.0, 72.0).repeat_interleave(2))
    assert torch.equal(found[1], found[0] + 1000)
    assert torch.equal(found[2], found[0])
    tall = Control(networks[0], hint.transpose(1, 2), 1.0).hint_for(torch.zeros(1, 4, 6, 6))
    assert torch.equal(tall[0, 0, :, 0], torch.arange(24.0, 72.0))


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


def test_a_control_net_for_texts_of_another_width_is_refused(networks: tuple[Any, Any]) -> None:
    control = Control(networks[0], picture(0), 1.0)
    with pytest.raises(EngineError, match="width 64"):
        residuals(
            [[control]],
            [1],
            x=noise(),
            timesteps=torch.tensor([1]),
            tokens=torch.zeros(1, 77, 768),
            inputs={},
        )


def test_a_network_that_pools_adds_the_same_everywhere() -> None:
    network, pooling = tiny_control_net(1), tiny_control_net(1)
    pooling.register_to_config(global_pool_conditions=True)
    found, pooled = (
        residuals(
            [[], [Control(each, picture(0), 0.5)]],
            [1, 1],
            x=noise().expand(2, -1, -1, -1),
            timesteps=torch.tensor([1, 1]),
            tokens=text(1)[0].tokens.expand(2, -1, -1),
            inputs={},
        )["mid_block_additional_residual"]
        for each in (network, pooling)
    )
    assert torch.allclose(pooled, found.mean((2, 3), keepdim=True), atol=1e-6)
    assert not pooled[0].any()


def test_a_control_net_of_sdxl_is_told_of_the_whole_text() -> None:
    network = tiny_control_net(
        1,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=16 + 6 * 8,
    )
    told = {"text_embeds": torch.randn(3, 16), "time_ids": torch.rand(3, 6) * 64}
    x, tokens = noise().expand(3, -1, -1, -1), text(1)[0].tokens.expand(3, -1, -1)
    timesteps = torch.tensor([900, 500, 1])
    control = Control(network, picture(0), 1.0)
    found = residuals(
        [[], [control]],
        [1, 2],
        x=x,
        timesteps=timesteps,
        tokens=tokens,
        inputs={"added_cond_kwargs": told},
    )
    _, expected = network(
        x[1:],
        timesteps[1:],
        tokens[1:],
        picture(0).movedim(-1, 1).expand(2, -1, -1, -1),
        added_cond_kwargs={name: each[1:] for name, each in told.items()},
        return_dict=False,
    )
    assert torch.allclose(found["mid_block_additional_residual"][1:], expected, atol=1e-5)


def workflow(strength: float = 1.0, *, advanced: bool = True, **sampler: Any) -> Prompt:
    """A picture guided by another that the same workflow makes."""
    apply = {
        "control_net": ["20", 0],
        "image": ["22", 0],
        "strength": strength,
    }
    both = {"positive": ["6", 0], "negative": ["7", 0]}
    ends = {"start_percent": 0.1, "end_percent": 0.9}
    links = {"positive": ["23", 0], "negative": ["23", 1]} if advanced else {"positive": ["23", 0]}
    prompt = text_to_image(**links, **sampler)
    prompt |= {
        "20": node(
            "ControlNetLoader",
            control_net_name="one/diffusion_pytorch_model.safetensors",
        ),
        "21": {**prompt["3"], "inputs": {**prompt["3"]["inputs"], **both, "steps": 1}},
        "22": node("VAEDecode", samples=["21", 0], vae=["4", 2]),
        "23": node("ControlNetApplyAdvanced", **apply, **both, **ends)
        if advanced
        else node("ControlNetApply", **apply, conditioning=["6", 0]),
    }
    return prompt


def images_of(prompts: Sequence[Prompt], catalogue: Catalogue) -> list[Any]:
    return [images[0].astype(int) for _, images in all_latents_and_images(prompts, catalogue)]


@pytest.mark.parametrize("advanced", [True, False])
def test_a_workflow_is_guided_unless_its_strength_is_nothing(
    advanced: bool, controlled_catalogue: Catalogue
) -> None:
    prompts = [workflow(1.0, advanced=advanced), workflow(0.0, advanced=advanced), text_to_image()]
    guided, unguided, plain = images_of(prompts, controlled_catalogue)
    assert np.abs(unguided - plain).max() <= 1
    assert np.abs(guided - plain).max() > 20


def test_a_workflow_gives_the_same_alone_and_among_others(
    controlled_catalogue: Catalogue,
) -> None:
    prompts = [
        workflow(1.0),
        text_to_image(seed=2),
        workflow(0.5, seed=3, steps=6, cfg=3.0),
        workflow(0.8, advanced=False, seed=4, sampler_name="dpmpp_2m"),
    ]
    together = images_of(prompts, controlled_catalogue)
    for prompt, image in zip(prompts, together, strict=True):
        (alone,) = images_of([prompt], controlled_catalogue)
        assert np.abs(alone - image).max() <= 1


def test_the_advanced_node_takes_a_vae_that_it_does_not_need(
    controlled_catalogue: Catalogue,
) -> None:
    prompt = workflow()
    prompt["23"]["inputs"]["vae"] = ["4", 2]
    with_vae, without = images_of([prompt, workflow()], controlled_catalogue)
    assert np.abs(with_vae - without).max() <= 1
