"""Networks whose images go on at the opposite edge."""

from __future__ import annotations

import gc

import torch
from torch import nn

from engine.diffusion.seamless import seamless


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))


def test_it_goes_on_at_the_opposite_edge() -> None:
    x = torch.rand(1, 1, 6, 6)
    tiled = seamless(network())
    moved = tiled(x.roll(2, dims=3))
    torch.testing.assert_close(moved, tiled(x).roll(2, dims=3))


def test_a_network_has_one_variant_which_is_its_own() -> None:
    base = network()
    variant = seamless(base)
    assert seamless(base) is variant
    assert seamless(variant) is variant
    assert variant[0].weight is base[0].weight


def test_a_variant_holds_its_network() -> None:
    """Else another network could get its id, and its variant."""
    variant = seamless(network())
    gc.collect()
    others = [seamless(network()) for _ in range(50)]
    assert variant not in others
    assert len(set(map(id, others))) == 50
