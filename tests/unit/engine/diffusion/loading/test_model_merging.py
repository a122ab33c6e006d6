"""Weights made of those of two models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.diffusion.adapters import Adapter, AppliedAdapter, LowRank
from engine.diffusion.families.family_lookup import model_family
from engine.diffusion.loading.model_merging import Mix, mixed_unet, unet_key
from engine.diffusion.loading.networks import prepared
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.model import Model
from engine.errors import EngineError
from engine.families.family import Family
from engine.options import UnetOptions
from tests.support.engine.stores import store_of
from tests.support.engine.tiny_unet import tiny_unet

Models = tuple[Model, Model]
LAYER = "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q"
WEIGHT = f"{LAYER}.weight"
HALVES = Mix((("", (0.5, 0.5)),))


@pytest.fixture
def store(tmp_path: Any) -> ModelStore:
    return store_of(tmp_path)


@pytest.fixture(scope="module")
def models() -> Models:
    family = model_family(Family.SD1)
    one, other = (Model(prepared(tiny_unet(seed), UnetOptions()), family, 1.0) for seed in (1, 2))
    return one, other


def test_each_part_has_its_shares(store: ModelStore, models: Models) -> None:
    first, second = models
    parts = (("", (0.25, 0.75)), ("input_blocks.", (1.0, 0.0)), ("out.", (0.0, 1.0)))
    unet = mixed_unet(store, first, second, Mix(parts))
    assert torch.equal(unet.get_parameter(WEIGHT), first.unet.get_parameter(WEIGHT))
    assert torch.equal(unet.conv_out.weight, second.unet.conv_out.weight)
    middle = "mid_block.resnets.0.conv1.weight"
    ours, theirs = (each.unet.get_parameter(middle) for each in models)
    assert torch.allclose(unet.get_parameter(middle), ours * 0.25 + theirs * 0.75)


def test_the_longest_beginning_counts() -> None:
    mix = Mix((("input_blocks.1", (0.1, 0.9)), ("input_blocks.10", (0.2, 0.8))))
    assert mix.shares("input_blocks.10.0.bias") == (0.2, 0.8)
    assert mix.shares("input_blocks.1.0.bias") == (0.1, 0.9)
    assert mix.shares("time_embed.0.bias") == (0.1, 0.9)


def test_what_a_lora_adds_is_mixed_too(store: ModelStore, models: Models, tmp_path: Any) -> None:
    first, second = models
    weight = second.unet.get_parameter(WEIGHT)
    low = LowRank(torch.randn(2, weight.shape[1]), torch.randn(weight.shape[0], 2))
    applied = AppliedAdapter(Adapter(tmp_path, ("x", 1, 1), {LAYER: (low,)}), 0.5)
    unet = mixed_unet(store, first, replace(second, adapters=(applied,)), HALVES)
    added = weight + 0.5 * low.up @ low.down
    expected = (first.unet.get_parameter(WEIGHT) + added) / 2
    assert torch.allclose(unet.get_parameter(WEIGHT), expected, atol=1e-6)


def test_equal_mixes_are_made_once_and_change_neither(store: ModelStore, models: Models) -> None:
    first, second = models
    before = first.unet.get_parameter(WEIGHT).clone()
    unet = mixed_unet(store, first, second, HALVES)
    assert mixed_unet(store, first, second, HALVES) is unet
    assert mixed_unet(store, second, first, HALVES) is not unet
    assert torch.equal(first.unet.get_parameter(WEIGHT), before)
    assert hasattr(unet, "row_updates")
    assert unet_key(first) != unet_key(second)


def test_a_layer_of_another_shape_only_gets_its_share(store: ModelStore, models: Models) -> None:
    first, wide = models[0], tiny_unet(2)
    wide.conv_in = torch.nn.Conv2d(9, 8, 3, padding=1)
    unet = mixed_unet(store, first, Model(wide, first.family, 1.0), HALVES)
    assert torch.allclose(unet.conv_in.weight, first.unet.conv_in.weight / 2)


def test_models_of_other_families_are_refused(store: ModelStore, models: Models) -> None:
    other = tiny_unet()
    other.register_to_config(cross_attention_dim=32)
    with pytest.raises(EngineError, match="different families"):
        mixed_unet(store, models[0], Model(other, models[0].family, 1.0), HALVES)
