"""Guidance by attention: what is perturbed, what is watched, and where it is blurred."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.diffusion.patches import variants
from engine.diffusion.patches.self_guidance import SelfAttention, perturb, watch
from engine.diffusion.patches.variants import variant_of
from engine.graph.catalogue import Catalogue
from tests.support.engine.latents import all_latents_and_images, latents_of
from tests.support.engine.tiny_unet import answer_of
from tests.support.engine.workflows import node, text_to_image

MIDDLE = "mid_block.attentions.0.transformer_blocks.0.attn1"


def latents() -> Tensor:
    return torch.randn((2, 4, 32, 24), generator=torch.Generator().manual_seed(3))


def test_the_middle_alone_is_perturbed_and_each_place_attends_to_itself(unet: Any) -> None:
    perturbed = variant_of(unet, "perturbed", perturb)
    layer, hidden = perturbed.get_submodule(MIDDLE), torch.randn(1, 6, 32)
    assert torch.allclose(layer(hidden), layer.to_out[0](layer.to_v(hidden)))
    assert layer.to_v.weight is unet.get_submodule(MIDDLE).to_v.weight
    kinds = {name: type(each) for name, each in perturbed.named_modules()}
    assert [at for at, kind in kinds.items() if kind is not type(unet.get_submodule(at))] == [
        MIDDLE
    ]


def test_what_is_watched_answers_as_before_and_sums_to_the_places(unet: Any) -> None:
    watched = variant_of(unet, "watched", watch)
    assert torch.allclose(answer_of(watched, latents()), answer_of(unet, latents()), atol=1e-5)
    attended = watched.get_submodule(watched.watched).attended
    assert attended.shape == (2, 4 * 3)
    assert torch.allclose(attended.sum(1), torch.tensor([12.0, 12.0]), atol=1e-4)


def test_only_what_is_attended_to_most_is_blurred() -> None:
    x0 = latents()[:1]
    attended = torch.zeros(1, 12)
    attended[0, 0] = 2.0  # the first 8 x 8 places
    found = SelfAttention(1.0, 2.0).degraded(x0, attended)
    assert torch.equal(found[..., 8:, :], x0[..., 8:, :])
    assert torch.equal(found[..., :8, 8:], x0[..., :8, 8:])
    assert not torch.allclose(found[..., :8, :8], x0[..., :8, :8], atol=0.1)
    flat = torch.ones_like(x0)
    assert torch.allclose(SelfAttention(1.0, 2.0).degraded(flat, attended), flat, atol=1e-5)
    assert torch.equal(SelfAttention(1.0, 0.0).degraded(x0, attended), x0)


def guided(class_type: str, cfg: float = 7.0, **inputs: Any) -> dict[str, Any]:
    prompt = text_to_image(cfg=cfg, steps=3, model=["m", 0])
    prompt["5"]["inputs"] |= {"width": 128, "height": 64}
    return prompt | {"m": node(class_type, model=["4", 0], **inputs)}


def plain(cfg: float = 7.0) -> dict[str, Any]:
    return guided("RescaleCFG", cfg, multiplier=0.0)


SAG = {"scale": 1.5, "blur_sigma": 2.0}


@pytest.mark.parametrize("cfg", [7.0, 1.0])
def test_a_scale_guides_and_a_scale_of_nothing_does_not(cfg: float, catalogue: Catalogue) -> None:
    nothing = SAG | {"scale": 0.0}
    prompts = [
        plain(cfg),
        guided("PerturbedAttentionGuidance", cfg, scale=0.0),
        guided("SelfAttentionGuidance", cfg, **nothing),
        guided("PerturbedAttentionGuidance", cfg, scale=4.0),
        guided("SelfAttentionGuidance", cfg, **SAG),
    ]
    expected, *found = latents_of(prompts, catalogue)
    changes = [abs(each - expected).max() for each in found]
    assert max(changes[:2]) < 1e-3
    assert min(changes[2:]) > 1e-3


def test_jobs_with_and_without_it_give_what_each_gives_alone(catalogue: Catalogue) -> None:
    prompts = [plain(), *(guided("SelfAttentionGuidance", cfg, **SAG) for cfg in (7.0, 1.0))]
    for prompt, latent in zip(prompts, latents_of(prompts, catalogue), strict=True):
        (alone,) = latents_of([prompt], catalogue)
        assert abs(latent - alone).max() < 1e-3


def patched_twice(first: str, second: str) -> dict[str, Any]:
    """A prompt whose model has both patches."""
    shrink = {"block_number": 2, "downscale_factor": 2.0, "downscale_after_skip": True}
    shrink |= {"start_percent": 0.0, "end_percent": 0.5}
    inputs: dict[str, dict[str, Any]] = {
        "SelfAttentionGuidance": SAG,
        "PerturbedAttentionGuidance": {"scale": 4.0},
        "PatchModelAddDownscale": shrink
        | dict.fromkeys(("downscale_method", "upscale_method"), "bicubic"),
    }
    prompt = guided(first, **inputs[first])
    prompt["3"]["inputs"]["model"] = ["n", 0]
    return prompt | {"n": node(second, model=["m", 0], **inputs[second])}


@pytest.mark.parametrize("second", ["PerturbedAttentionGuidance", "PatchModelAddDownscale"])
def test_a_model_takes_several_patches_in_any_order(second: str, catalogue: Catalogue) -> None:
    prompts = [
        guided("SelfAttentionGuidance", **SAG),
        patched_twice("SelfAttentionGuidance", second),
        patched_twice(second, "SelfAttentionGuidance"),
    ]
    one, both, turned = latents_of(prompts, catalogue)
    assert abs(both - one).max() > 1e-3
    assert abs(both - turned).max() < 1e-3


def test_a_run_makes_its_variants_once(
    catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    copy = variants.sharing_copy

    def counted(unet: Any) -> Any:
        made.append(unet)
        return copy(unet)

    monkeypatch.setattr(variants, "sharing_copy", counted)
    prompt = patched_twice("PerturbedAttentionGuidance", "PatchModelAddDownscale")
    all_latents_and_images([prompt], catalogue)
    assert len(made) == 3  # shrunk, and both of them perturbed
