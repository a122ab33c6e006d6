"""What the layers of a UNet are given of image prompts in a call."""

from __future__ import annotations

import torch
from diffusers.models.attention_processor import Attention
from torch import nn

from engine.diffusion.loading.attention import use_plain_attention
from engine.diffusion.vision.attended import KeysValues
from engine.diffusion.vision.row_prompts import PlacedPrompt, RowPrompts


def test_all_layers_of_a_call_share_a_mask() -> None:
    blocks = [nn.ModuleDict({"attn2": Attention(8, heads=1, dim_head=8)}) for _ in range(3)]
    network = use_plain_attention(nn.ModuleDict({"a": nn.ModuleList(blocks)}))
    names = [name for name, _ in network.named_modules() if name.endswith("attn2")]
    pairs = {name: KeysValues(torch.zeros(1, 2, 8), torch.zeros(1, 2, 8)) for name in names}
    masked = PlacedPrompt(pairs, torch.rand(1, 1, 64, 64), (4, 4))
    other = PlacedPrompt(pairs, torch.rand(2, 1, 64, 64), (4, 4))
    with RowPrompts(network).of([[masked], [], [other]], [2, 1, 3]):
        given = [layer.added for name, layer in network.named_modules() if name in names]
        masks = [each.mask for added in given for each in added]
        assert len(masks) == len(names)
        assert masks[0] is not None
        assert all(each is masks[0] for each in masks)
        assert masked.mask is not None
        assert other.mask is not None
        expected = [masked.mask] * 2 + [other.mask[:1], other.mask[1:], other.mask[1:]]
        assert torch.equal(masks[0], torch.cat(expected))
    assert not any(given)
