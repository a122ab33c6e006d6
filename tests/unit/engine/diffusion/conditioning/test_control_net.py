"""ControlNets: their hints and residuals, the latents of diffusers' pipeline, and workflows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import (
    ControlNetModel,
    EulerDiscreteScheduler,
    StableDiffusionControlNetPipeline,
)
from safetensors.torch import save_file
from torch import Tensor

from engine.diffusion.conditioning import control_net
from engine.diffusion.conditioning.condition import Conditioning, controlled
from engine.diffusion.conditioning.control_file import read_control_net
from engine.diffusion.conditioning.control_net import Control, ControlNet, residuals
from engine.diffusion.conditioning.fitting import fitted_conditionings
from engine.diffusion.denoise import Denoise
from engine.diffusion.images.resampling import resampled
from engine.diffusion.loading.checkpoints import Checkpoint
from engine.diffusion.model import Model
from engine.diffusion.samplers.runge_kutta import euler
from engine.diffusion.samplers.schedules import sigmas_for
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.graph.models_folder import ModelsFolder
from tests.support.engine.bodies import outputs_of
from tests.support.engine.control_nets import (
    noise,
    picture,
    text,
    tiny_control_net,
    tiny_union,
    write_sizes,
)
from tests.support.engine.latents import farthest, psnr_db_of, shared_images
from tests.support.engine.workflows import Prompt, node, text_to_image
from training.single_file import SCHEDULER


def test_a_picture_is_cut_around_its_middle_and_pictures_take_turns(networks: Networks) -> None:
    columns = torch.arange(96.0).expand(48, 96)[None, :, :, None].expand(2, 48, 96, 3)
    hint = columns + torch.tensor([0.0, 1000.0])[:, None, None, None]
    control = Control(networks[0], hint, 1.0)
    found = control.hint_for(torch.zeros(3, 4, 12, 12))
    assert found.shape == (3, 3, 96, 96)
    assert torch.equal(found[0, 0, 0], torch.arange(24.0, 72.0).repeat_interleave(2))
    assert torch.equal(found[1], found[0] + 1000)
    assert torch.equal(found[2], found[0])
    with_opacity = Control(networks[0], torch.cat([hint, hint[..., :1]], dim=-1), 1.0)
    assert torch.equal(with_opacity.hint_for(torch.zeros(3, 4, 12, 12)), found)
    tall = Control(networks[0], hint.transpose(1, 2), 1.0).hint_for(torch.zeros(1, 4, 6, 6))
    assert torch.equal(tall[0, 0, :, 0], torch.arange(24.0, 72.0))


def test_only_the_pictures_that_latents_use_are_resized(
    networks: Networks, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def counted(samples: Tensor, *args: Any, **options: Any) -> Tensor:
        counts.append(len(samples))
        return resampled(samples, *args, **options)

    monkeypatch.setattr(control_net, "resampled", counted)
    control = Control(networks[0], torch.rand(16, 8, 8, 3), 1.0)
    for batch in (1, 3, 3, 20):
        assert len(control.hint_for(torch.zeros(batch, 4, 2, 2))) == batch
    assert counts == [1, 3, 16]


def test_a_control_net_for_texts_of_another_width_is_refused(networks: Networks) -> None:
    control, tokens = Control(networks[0], picture(0), 1.0), torch.zeros(1, 77, 768)
    with pytest.raises(EngineError, match="width 64"):
        residuals([[control]], [1], x=noise(), timesteps=torch.ones(1), tokens=tokens, inputs={})


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


def test_a_control_net_of_sdxl_is_given_pooled_text_and_size_conditioning() -> None:
    network = tiny_control_net(
        1,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=16 + 6 * 8,
    )
    added = {"text_embeds": torch.randn(3, 16), "time_ids": torch.rand(3, 6) * 64}
    x, tokens = noise().expand(3, -1, -1, -1), text(1)[0].tokens.expand(3, -1, -1)
    timesteps = torch.tensor([900, 500, 1])
    control = Control(network, picture(0), 1.0)
    inputs = {"added_cond_kwargs": added}
    found = residuals(
        [[], [control]], [1, 2], x=x, timesteps=timesteps, tokens=tokens, inputs=inputs
    )
    own = {name: each[1:] for name, each in added.items()}
    hint = picture(0).movedim(-1, 1).expand(2, -1, -1, -1)
    _, expected = network(
        x[1:], timesteps[1:], tokens[1:], hint, added_cond_kwargs=own, return_dict=False
    )
    assert torch.allclose(found["mid_block_additional_residual"][1:], expected, atol=1e-5)


pytestmark = [
    pytest.mark.usefixtures("inference"),
    # diffusers' scheduler calls NumPy in an outdated way.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

Networks = tuple[Any, Any]
STEPS = 4
"""Their sigmas are those of whole training steps, where diffusers and ComfyUI round alike."""
CFG = 7.0


def sampled(model: Model, positive: Conditioning, negative: Conditioning) -> Tensor:
    """The latent that is sampled from `noise`."""
    sigmas = sigmas_for(model.levels, "normal", STEPS)
    sampling = euler(noise() * (1 + sigmas[0] ** 2).sqrt(), sigmas)
    x, sigma = next(sampling)
    conditionings = fitted_conditionings(positive, negative, x, model.levels)
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
    *,
    percents: tuple[float, float] = (0.0, 1.0),
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


def test_a_union_gets_the_types_of_its_pictures_row_by_row(tmp_path: Path) -> None:
    union = tiny_union(1)
    path = tmp_path / "union.safetensors"
    save_file(union.state_dict(), path)
    write_sizes(union, path)
    found = ControlNet(read_control_net(path, torch.device("cpu")))
    state = union.state_dict()
    plain: Any = ControlNetModel(**{**tiny_control_net(1).config, "class_embed_type": "identity"})
    plain.load_state_dict({key: state[key] for key in plain.state_dict()})
    x, timestep, tokens, hint = noise(), torch.tensor([400]), text(1)[0].tokens, picture(2)

    def expected(number: int | None) -> Tensor:
        types = torch.eye(3)[number] if number is not None else torch.zeros(3)
        waves = union.control_type_proj(types).reshape(1, -1)
        pixels = hint.movedim(-1, 1)
        with ExitStack() as hooks:
            if number is not None:
                mean = union.controlnet_cond_embedding(pixels).mean((2, 3))
                (layer,) = union.transformer_layes
                token = layer((mean + state["task_embedding"][number])[None])[0]
                added = union.spatial_ch_projs(token)[..., None, None]
                hook = plain.controlnet_cond_embedding.register_forward_hook(
                    lambda *given: given[-1] + added
                )
                hooks.callback(hook.remove)
            labels = union.control_add_embedding(waves)
            result: Tensor = plain(
                x, timestep, tokens, pixels, class_labels=labels, return_dict=False
            )[1]
        return result

    numbers = (2, None, 0)
    controls = [[found.with_type(number).control(hint, 1.0)] for number in numbers]
    with torch.inference_mode():
        middle = residuals(
            controls,
            [1, 1, 1],
            x=x.expand(3, -1, -1, -1),
            timesteps=timestep.expand(3),
            tokens=tokens.expand(3, -1, -1),
            inputs={},
        )["mid_block_additional_residual"]
        for row, number in zip(middle, numbers, strict=True):
            assert psnr_db_of(row.numpy(), expected(number)[0].numpy()) > 100
        for one, other in combinations(middle, 2):
            assert psnr_db_of(one.numpy(), other.numpy()) < 80
    with pytest.raises(EngineError, match="types 0 to 2, but this is type 3"):
        found.with_type(3)


@pytest.mark.parametrize(
    ("strengths", "percents"),
    [((1.0,), (0.0, 1.0)), ((0.4,), (0.25, 0.75)), ((0.8, 0.5), (0.0, 0.5))],
)
def test_latents_are_those_of_diffusers(
    strengths: tuple[float, ...],
    percents: tuple[float, float],
    checkpoint: Checkpoint,
    networks: Networks,
) -> None:
    used = networks[: len(strengths)]
    hints = [picture(seed) for seed in range(len(strengths))]
    positive, negative = text(1), text(2)
    for network, hint, strength in zip(used, hints, strengths, strict=True):
        given = {"control_net": ControlNet(network), "image": hint, "strength": strength}
        ends = dict(zip(("start_percent", "end_percent"), percents, strict=True))
        positive, negative = outputs_of(
            "ControlNetApplyAdvanced", positive=positive, negative=negative, **given, **ends
        )
    found = sampled(checkpoint.model, positive, negative)
    expected = by_diffusers(checkpoint, used, hints, strengths, percents=percents)
    assert psnr_db_of(found.numpy(), expected.numpy()) > 100
    without = sampled(checkpoint.model, text(1), text(2))
    assert psnr_db_of(without.numpy(), expected.numpy()) < 40


def test_the_old_node_guides_uncond_too(checkpoint: Checkpoint, networks: Networks) -> None:
    apply = {"control_net": ControlNet(networks[0]), "image": picture(0), "strength": 1.0}
    (positive,) = outputs_of("ControlNetApply", conditioning=text(1), **apply)
    found = sampled(checkpoint.model, positive, text(2))
    expected = by_diffusers(checkpoint, networks[:1], [picture(0)], [1.0])
    assert psnr_db_of(found.numpy(), expected.numpy()) > 100


def test_rows_with_and_without_share_calls_and_get_what_they_get_alone(
    checkpoint: Checkpoint, networks: Networks
) -> None:
    model, x = checkpoint.model, noise()
    conditionings = [
        text(1),
        controlled(text(2), Control(networks[0], picture(1), 1.0)),
        controlled(text(3), Control(networks[0], picture(2, 80, 40), 0.5)),
        controlled(text(4), Control(networks[0], picture(3), 0.7)),
    ]
    conditionings[3] = controlled(
        conditionings[3], Control(networks[1], picture(4), 1.2, (0.0, 0.9))
    )
    asked = []
    for each, sigma in zip(conditionings, (9.0, 7.0, 3.0, 1.0), strict=True):
        both = fitted_conditionings(each, text(5), x, model.levels)
        asked.append(Denoise(model, x * sigma, torch.tensor(sigma), *both, 3.0))
    calls = Counter[Any]()
    with ExitStack() as hooks:
        for each in (model.unet, *networks):
            hook = each.register_forward_pre_hook(lambda network, _: calls.update([network]))
            hooks.callback(hook.remove)
        together = Denoise.run_batch(asked)
    assert calls == {model.unet: 1, networks[0]: 1, networks[1]: 1}
    assert len({request.key for request in asked}) == 1
    for request, found in zip(asked, together, strict=True):
        (alone,) = Denoise.run_batch([request])
        assert torch.allclose(found, alone, atol=1e-4)


@pytest.fixture(scope="module")
def controlled_catalogue(
    tiny_root: Path, networks: Networks, tmp_path_factory: pytest.TempPathFactory
) -> Catalogue:
    """A catalogue of the tiny checkpoint and the two networks, in the folders of diffusers."""
    root = tmp_path_factory.mktemp("controlled")
    (root / "checkpoints").symlink_to(tiny_root / "checkpoints")
    for name, network in zip(("one", "two"), networks, strict=True):
        network.save_pretrained(root / "controlnet" / name)
    return Catalogue(ModelsFolder(root))


WEIGHTS = "diffusion_pytorch_model.safetensors"


def workflow(strength: float = 1.0, *, advanced: bool = True, **sampler: Any) -> Prompt:
    """A picture guided by another that the same workflow makes."""
    apply = {"control_net": ["20", 0], "image": ["22", 0], "strength": strength}
    both = {"positive": ["6", 0], "negative": ["7", 0]}
    ends = {"start_percent": 0.1, "end_percent": 0.9}
    links = {"positive": ["23", 0], "negative": ["23", 1]} if advanced else {"positive": ["23", 0]}
    prompt = text_to_image(**links, **sampler)
    prompt |= {
        "20": node("ControlNetLoader", control_net_name=f"one/{WEIGHTS}"),
        "21": {**prompt["3"], "inputs": {**prompt["3"]["inputs"], **both, "steps": 1}},
        "22": node("VAEDecode", samples=["21", 0], vae=["4", 2]),
        "23": node("ControlNetApplyAdvanced", **apply, **both, **ends)
        if advanced
        else node("ControlNetApply", **apply, conditioning=["6", 0]),
    }
    return prompt


@pytest.mark.parametrize("advanced", [True, False])
def test_a_workflow_is_guided_unless_its_strength_is_nothing(
    advanced: bool, controlled_catalogue: Catalogue
) -> None:
    prompts = [workflow(1.0, advanced=advanced), workflow(0.0, advanced=advanced), text_to_image()]
    guided, unguided, plain = shared_images(prompts, controlled_catalogue)
    assert farthest(unguided, plain) <= 1
    assert farthest(guided, plain) > 20


def test_the_advanced_node_takes_a_vae_in_vain(controlled_catalogue: Catalogue) -> None:
    prompt = workflow()
    prompt["23"]["inputs"]["vae"] = ["4", 2]
    assert farthest(*shared_images([prompt, workflow()], controlled_catalogue)) <= 1
