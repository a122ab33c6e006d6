"""Attention layers of UNets."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn

from engine.diffusion.loading.attention import PlainAttention, use_plain_attention

WIDTH, HEADS, TEXT_WIDTH = 16, 2, 12


def self_attention(**options: object) -> nn.Module:
    layer = Attention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, **options)  # type: ignore[arg-type]
    return nn.Sequential(layer).requires_grad_(False).eval()


@pytest.mark.parametrize("text", [None, torch.randn(3, 7, TEXT_WIDTH)], ids=["self", "cross"])
def test_the_answer_is_exactly_that_of_diffusers(text: Tensor | None) -> None:
    network = self_attention(cross_attention_dim=None if text is None else TEXT_WIDTH)
    x = torch.randn(3, 5, WIDTH)
    expected = network[0](x, encoder_hidden_states=text)
    (layer,) = use_plain_attention(network)
    assert type(layer) is PlainAttention
    assert torch.equal(layer(x, encoder_hidden_states=text, attention_mask=None), expected)


def test_a_replaced_layer_keeps_the_names_of_its_parameters_and_its_mode() -> None:
    network = self_attention()
    before = dict(network.named_parameters())
    after = dict(use_plain_attention(network).named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is each for name, each in before.items())
    assert not any(module.training for module in network.modules())


@pytest.mark.parametrize(
    "options",
    [{"norm_num_groups": 4}, {"residual_connection": True}, {"rescale_output_factor": 2.0}],
    ids=str,
)
def test_layers_that_do_more_keep_their_way(options: dict[str, object]) -> None:
    (layer,) = use_plain_attention(self_attention(**options))
    assert type(layer) is Attention
