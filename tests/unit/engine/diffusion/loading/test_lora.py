"""LoRAs in all key formats, merged by their definition into copies that share all other weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.diffusion.loading import layout
from engine.diffusion.loading.checkpoints import load_checkpoint
from engine.diffusion.loading.lora import Networks, with_lora
from engine.diffusion.patches.variants import sharing_copy
from engine.errors import EngineError
from engine.graph.catalogue import Catalogue
from engine.options import UnetOptions
from tests.support.engine.latents import all_latents_and_images
from tests.support.engine.loras import ALPHA, RANK, Pairs, flat, layer_pairs, with_alpha
from tests.support.engine.stores import store_of
from tests.support.engine.workflows import node, text_to_image

XL = "sdxl.safetensors"
COMPILED = UnetOptions(compiler="eager")
"""LoRAs are merged into UNets that are compiled."""


class Rig:
    """A store with LoRAs, and the networks of the tiny XL."""

    def __init__(self, root: Path) -> None:
        self.store = store_of(root, unets=COMPILED)
        loaded = load_checkpoint(self.store, XL)
        self.networks = Networks(loaded.model.unet, loaded.model.family, loaded.clip.networks)

    def write(self, tensors: Mapping[str, Tensor], name: str = "l") -> None:
        own = {key: tensor.clone().contiguous() for key, tensor in tensors.items()}
        save_file(own, self.store.models.top_level_path("loras") / f"{name}.safetensors")

    def merged(
        self, networks: Networks | None = None, name: str = "l", unet: float = 1, text: float = 1
    ) -> Networks:
        into, name = networks or self.networks, f"{name}.safetensors"
        return with_lora(self.store, name, into, unet_strength=unet, text_strength=text)


@pytest.fixture
def rig(families_root: Path, tmp_path: Path) -> Rig:
    (tmp_path / "checkpoints").symlink_to(families_root / "checkpoints")
    (tmp_path / "loras").mkdir()
    return Rig(tmp_path)


def pairs_for(module: nn.Module, seed: int) -> Pairs:
    return layer_pairs(module, "to_q|conv1|q_proj", seed=seed)


def by_definition(weight: Tensor, down: Tensor, up: Tensor, strength: float) -> Tensor:
    product = torch.einsum("or,r...->o...", up.flatten(1), down)
    return weight + strength * ALPHA / RANK * product


def kohya(prefix: str, pairs: Pairs) -> dict[str, Tensor]:
    return with_alpha(pairs, flat(prefix))


def dotted(prefix: str, pairs: Pairs, words: tuple[str, str]) -> dict[str, Tensor]:
    """A LoRA in the formats without an alpha, which `up` is multiplied with instead."""
    tensors = {}
    for name, (down, up) in pairs.items():
        tensors[f"{prefix}{name}.{words[0]}.weight"] = down
        tensors[f"{prefix}{name}.{words[1]}.weight"] = up * (ALPHA / RANK)
    return tensors


def test_every_touched_weight_is_by_the_definition_and_the_others_are_shared(rig: Rig) -> None:
    networks = rig.networks
    pairs = pairs_for(networks.unet, 1)
    rig.write(kohya("lora_unet_", pairs))
    unet = rig.merged(unet=0.7).unet
    weights = dict(networks.unet.named_parameters())
    for name, weight in unet.named_parameters():
        if (layer := name.removesuffix(".weight")) in pairs and name.endswith(".weight"):
            expected = by_definition(weights[name], *pairs[layer], strength=0.7)
            assert torch.allclose(weight, expected, atol=1e-6)
        else:
            assert weight is weights[name]
    assert {name.count("conv1") for name in pairs} == {0, 1}


def test_text_encoders_are_rounded_to_half_precision_once(rig: Rig) -> None:
    networks = rig.networks
    first, second = (pairs_for(networks.text_encoders[1], seed) for seed in (1, 2))
    rig.write(kohya("lora_te2_", first), "1")
    rig.write(kohya("lora_te2_", second), "2")
    found = rig.merged(rig.merged(name="1", text=0.5), "2", text=-0.3)
    assert found.unet is networks.unet
    assert found.text_encoders[0] is networks.text_encoders[0]
    for name, (down, up) in first.items():
        weight = networks.text_encoders[1].get_parameter(f"{name}.weight")
        weight = by_definition(weight, down, up, 0.5)
        weight = by_definition(weight, *second[name], strength=-0.3)
        merged = found.text_encoders[1].get_parameter(f"{name}.weight")
        assert torch.equal(merged, weight.half().float())
    assert found.text_encoders[1].serial != networks.text_encoders[1].serial


def test_all_spellings_draw_the_same_picture(rig: Rig) -> None:
    networks = rig.networks
    unet = pairs_for(networks.unet, 1)
    text = [pairs_for(encoder, 2 + at) for at, encoder in enumerate(networks.text_encoders)]
    in_file = layout.unet_names(unet, networks.unet.config)
    plain = kohya("lora_te1_", text[0]) | kohya("lora_te2_", text[1])
    rig.write(plain | kohya("lora_unet_", unet), "kohya")
    blocks = {in_file[name]: pair for name, pair in unet.items()}
    assert any(name.startswith("input_blocks.") for name in blocks)
    rig.write(plain | kohya("lora_unet_", blocks), "kohya-blocks")
    for name, words in (
        ("peft", ("lora_A", "lora_B")),
        ("diffusers", ("lora.down", "lora.up")),
        ("adapter", ("lora_A.default", "lora_B.default")),
    ):
        parts = zip(("unet.", "text_encoder.", "text_encoder_2."), (unet, *text), strict=True)
        tensors = [dotted(prefix, pairs, words) for prefix, pairs in parts]
        rig.write(tensors[0] | tensors[1] | tensors[2], name)
    names = ("kohya", "kohya-blocks", "peft", "diffusers", "adapter")
    catalogue = Catalogue(rig.store.models)
    prompts = [*(drawing(f"{name}.safetensors") for name in names), drawing(None)]
    first, *others = [run[0] for run in all_latents_and_images(prompts, catalogue)]
    assert [np.allclose(other, first, atol=1e-4) for other in others] == [True] * 4 + [False]


def drawing(lora: str | None) -> dict[str, Any]:
    prompt = text_to_image(steps=2)
    prompt["4"]["inputs"]["ckpt_name"] = XL
    if lora is not None:
        inputs = {"lora_name": lora, "strength_model": 0.8, "strength_clip": 0.5}
        prompt["40"] = node("LoraLoader", model=["4", 0], clip=["4", 1], **inputs)
        prompt["3"]["inputs"]["model"] = ["40", 0]
        prompt["6"]["inputs"]["clip"] = prompt["7"]["inputs"]["clip"] = ["40", 1]
    return prompt


def test_the_old_names_of_attention_processors_are_known(rig: Rig) -> None:
    networks = rig.networks
    layer = "mid_block.attentions.0.transformer_blocks.0.attn1"
    down, up, tensors = torch.ones(1, 32), torch.ones(32, 1), dict[str, Tensor]()
    for at in ("q", "out"):
        key = f"unet.{layer}.processor.to_{at}_lora"
        tensors |= {f"{key}.down.weight": down, f"{key}.up.weight": up}
    rig.write(tensors)
    unet = rig.merged().unet
    for name in (f"{layer}.to_q.weight", f"{layer}.to_out.0.weight"):
        assert torch.allclose(unet.get_parameter(name), networks.unet.get_parameter(name) + 1)


def test_a_convolution_may_have_its_kernel_in_the_middle(rig: Rig) -> None:
    networks = rig.networks
    name = "down_blocks.0.resnets.0.conv1"
    weight = networks.unet.get_parameter(f"{name}.weight")
    generator = torch.Generator().manual_seed(1)
    down = torch.randn(RANK, weight.shape[1], 1, 1, generator=generator)
    mid = torch.randn(RANK, RANK, 3, 3, generator=generator)
    up = torch.randn(weight.shape[0], RANK, 1, 1, generator=generator)
    key = f"lora_unet_{name.replace('.', '_')}"
    parts = {"down": down, "mid": mid, "up": up}
    rig.write({f"{key}.lora_{part}.weight": tensor for part, tensor in parts.items()})
    unet = rig.merged().unet
    # Three convolutions in a row equal the one that they are merged into.
    x = torch.randn(1, weight.shape[1], 5, 5, generator=generator)
    chained = torch.conv2d(torch.conv2d(torch.conv2d(x, down), mid, padding=1), up)
    merged = unet.get_parameter(f"{name}.weight") - weight
    assert torch.allclose(torch.conv2d(x, merged, padding=1), chained, atol=1e-4)


def test_equal_uses_share_one_merged_network_and_zero_strength_is_none(rig: Rig) -> None:
    networks = rig.networks
    rig.write(kohya("lora_unet_", pairs_for(networks.unet, 1)))
    before = rig.store.size_bytes
    once = rig.merged()
    assert rig.merged() == once
    assert rig.merged(unet=0.5) != once
    assert rig.merged(unet=0.0) == networks
    touched = sum(
        each.nbytes
        for name, each in once.unet.named_parameters()
        if each is not networks.unet.get_parameter(name)
    )
    assert rig.store.size_bytes == before + 2 * touched


def test_a_copy_of_a_merged_network_is_merged_into_as_it_is(rig: Rig) -> None:
    networks = rig.networks
    rig.write(kohya("lora_unet_", pairs_for(networks.unet, 1)))
    once = rig.merged()
    patched = sharing_copy(once.unet)
    patched.register_forward_hook(print)
    twice = rig.merged(replace(networks, unet=patched)).unet
    assert twice._forward_hooks
    name = next(iter(pairs_for(networks.unet, 1)))
    steps = [each.get_parameter(f"{name}.weight") for each in (networks.unet, once.unet, twice)]
    assert torch.allclose(steps[2] - steps[1], steps[1] - steps[0], atol=1e-6)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"lora_unet_x.lora_down.weight": 1, "lora_unet_x.lora_up.weight": 1}, "none of the 1"),
        ({"emb_params": 1}, "not a LoRA"),
        ({"lora_unet_x.hada_w1_a": 1}, "damaged: lora_unet_x has hada_w1_a, but lacks hada_w1_b"),
        ({"lora_unet_x.lokr_w1": 1}, "damaged: lora_unet_x has lokr_w1, but lacks lokr_w2"),
        ({"unet.conv_in.lora_A.weight": 4}, "damaged: unet.conv_in has down, but lacks up"),
        ({"lora_unet_x.dora_scale": 1}, "not a LoRA"),
        ({"lora_unet_x.a1.weight": 1}, "a GLoRA, which is not supported"),
        (
            {"unet.conv_in.lora_A.weight": 7, "unet.conv_in.lora_B.weight": 7},
            r"l\.safetensors.*conv_in.*\(7, 7\).*\(16, 4, 3, 3\)",
        ),
    ],
)
def test_a_file_that_fits_nothing_says_so(tensors: dict[str, int], message: str, rig: Rig) -> None:
    rig.write({key: torch.zeros(size, size) for key, size in tensors.items()})
    with pytest.raises(EngineError, match=message):
        rig.merged()
