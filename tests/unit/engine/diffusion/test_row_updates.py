"""Layers that add to each row what its own LoRAs say, against layers whose weights are merged."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.adapters import Adapter, Adapters, AppliedAdapter, Kronecker, LowRank
from engine.diffusion.cross_attention_cache import CrossAttentionCache
from engine.diffusion.loading.linear import CrossAttentionLinear, use_one_dnn
from engine.diffusion.row_updates import RowUpdates, UpdatedConv2d, use_row_updates

SIZES = (1, 2, 1, 3)
ROWS = sum(SIZES)
NAME = "block.attn2.to_k"


def convolution(**options: int) -> nn.Module:
    return nn.Conv2d(6, 5, **{"kernel_size": 3, **options})


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 5), (4, 6)),
    "linear of vectors": (lambda: nn.Linear(6, 5), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 5, bias=False), (4, 6)),
    "convolution": (lambda: convolution(padding=1), (6, 8, 7)),
    "convolution without bias": (lambda: nn.Conv2d(6, 5, 3, bias=False), (6, 8, 7)),
    "convolution with a stride": (lambda: convolution(padding=1, stride=2), (6, 8, 7)),
    "convolution with gaps": (lambda: convolution(padding=2, dilation=2), (6, 8, 7)),
    "convolution of points": (lambda: convolution(kernel_size=1), (6, 8, 7)),
}


class Network(nn.Module):
    """One layer, which has the name of one that a UNet has."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"attn2": nn.ModuleDict({"to_k": layer})})
        self.row_updates: RowUpdates

    @property
    def layer(self) -> nn.Module:
        return self.get_submodule(NAME)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


def updated(layer: nn.Module) -> Network:
    network = Network(layer).requires_grad_(False)
    use_row_updates(network)
    return network


def adapter(weight: Tensor, seed: int, rank: int = 2) -> Adapter:
    generator = torch.Generator().manual_seed(seed)
    down = torch.randn(rank, *weight.shape[1:], generator=generator)
    up = torch.randn(len(weight), rank, generator=generator)
    return Adapter(Path("x"), ("x", 0, 0), {NAME: (LowRank(down, up),)})


def merged(layer: nn.Module, adapters: Adapters) -> nn.Module:
    """A copy of the layer with these in its weight."""
    copied = copy.deepcopy(layer)
    for each in adapters:
        for update in each.adapter.layers[NAME]:
            copied.weight += each.strength * update.dense().reshape(copied.weight.shape)
    return copied


def row_by_row(layer: nn.Module, x: Tensor, adapters: Sequence[Adapters]) -> Tensor:
    parts = zip(x.split(SIZES), adapters, strict=True)
    return torch.cat([merged(layer, own)(part) for part, own in parts])


def mixed(weight: Tensor) -> list[Adapters]:
    """None, one, another with the first at another strength, and the first again."""
    first, second = (adapter(weight, seed, rank) for seed, rank in ((1, 2), (2, 3)))
    one = AppliedAdapter(first, 0.7)
    return [(), (one,), (AppliedAdapter(second, 1.0), AppliedAdapter(first, -0.4)), (one,)]


@pytest.mark.parametrize("kind", LAYERS)
def test_rows_are_as_if_each_had_weights_of_its_own(kind: str) -> None:
    make, shape = LAYERS[kind]
    plain, x = make().requires_grad_(False), torch.randn(ROWS, *shape)
    network, adapters = updated(copy.deepcopy(plain)), mixed(plain.weight)
    with network.row_updates.of(adapters, SIZES):
        found = network(x)
    torch.testing.assert_close(found, row_by_row(plain, x, adapters), rtol=1e-5, atol=1e-5)
    assert torch.equal(network(x), plain(x))


@pytest.mark.parametrize("kind", LAYERS)
def test_strength_is_of_the_row_and_zero_is_none(kind: str) -> None:
    make, shape = LAYERS[kind]
    network, x = updated(make()), torch.randn(ROWS, *shape)
    one = adapter(network.layer.weight, 1)
    with network.row_updates.of([(AppliedAdapter(one, n / 2),) for n in range(4)], SIZES):
        found = network(x)
    with network.row_updates.of([(AppliedAdapter(one, 1.0),)], [ROWS]):
        whole = network(x)
    plain = network(x)
    strengths = torch.arange(4).repeat_interleave(torch.tensor(SIZES)) / 2
    strengths = strengths.view(-1, *[1] * (plain.ndim - 1))
    torch.testing.assert_close(found, plain + strengths * (whole - plain), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(4, 6), (6,)])
def test_rows_may_have_a_kronecker_product_beside_others(shape: tuple[int, ...]) -> None:
    plain, x = nn.Linear(6, 5).requires_grad_(False), torch.randn(ROWS, *shape)
    product = Kronecker(torch.randn(5, 3), torch.randn(1, 2))
    one = AppliedAdapter(Adapter(Path("y"), ("y", 0, 0), {NAME: (product,)}), 0.6)
    network, other = updated(copy.deepcopy(plain)), AppliedAdapter(adapter(plain.weight, 1), 0.7)
    adapters: list[Adapters] = [(one,), (), (other,), (other, one)]
    with network.row_updates.of(adapters, SIZES):
        found = network(x)
    torch.testing.assert_close(found, row_by_row(plain, x, adapters), rtol=1e-5, atol=1e-5)


def test_a_layer_may_get_the_tokens_of_all_rows_one_after_the_other() -> None:
    plain, tokens = nn.Linear(6, 5).requires_grad_(False), (2, 1, 3, 2, 4, 1, 2)
    network, adapters = updated(copy.deepcopy(plain)), mixed(plain.weight)
    x = torch.randn(sum(tokens), 6)
    with network.row_updates.of(adapters, SIZES, {NAME: tokens}):
        found = network(x)
    ends = [slice(0, 2), slice(2, 6), slice(6, 8), slice(8, 15)]
    wanted = [merged(plain, own)(x[end]) for own, end in zip(adapters, ends, strict=True)]
    torch.testing.assert_close(found, torch.cat(wanted), rtol=1e-5, atol=1e-5)


def test_a_convolution_may_have_another_memory_format() -> None:
    plain = convolution(padding=1).to(memory_format=torch.channels_last).requires_grad_(False)
    x = torch.randn(ROWS, 6, 8, 7).to(memory_format=torch.channels_last)
    network, adapters = updated(copy.deepcopy(plain)), mixed(plain.weight)
    with network.row_updates.of(adapters, SIZES):
        found = network(x)
    torch.testing.assert_close(found, row_by_row(plain, x, adapters), rtol=1e-5, atol=1e-5)


def test_the_layers_of_one_dnn_are_updated_and_keep_what_they_made_of_the_texts() -> None:
    cache = CrossAttentionCache()
    network = use_one_dnn(Network(nn.Linear(6, 5)).requires_grad_(False), cache)
    use_row_updates(network)
    assert type(network.layer) is CrossAttentionLinear
    plain = nn.Linear(6, 5).requires_grad_(False)
    plain.weight, plain.bias = network.layer.weight, network.layer.bias
    texts, adapters = [torch.randn(1, 4, 6) for _ in SIZES], mixed(plain.weight)

    def keys(own: Sequence[Adapters]) -> Tensor:
        with network.row_updates.of(own, SIZES):
            return network(cache.join_texts(texts, SIZES, 4, adapters=own))

    first = keys(adapters)
    x = cache.join_texts(texts, SIZES, 4)
    torch.testing.assert_close(first, row_by_row(plain, x, adapters), rtol=1e-5, atol=1e-5)
    again = keys(adapters)
    assert keys(adapters) is again
    assert torch.equal(again, first)
    others = [adapters[1], *adapters[1:]]
    torch.testing.assert_close(keys(others), row_by_row(plain, x, others), rtol=1e-5, atol=1e-5)


def test_an_adapter_that_no_job_uses_is_freed_though_texts_are_kept() -> None:
    cache = CrossAttentionCache()
    used = AppliedAdapter(adapter(torch.zeros(5, 6), 1), 1.0)
    text = torch.randn(1, 4, 6)
    first = cache.join_texts([text], [1], 4, adapters=[(used,)])
    assert cache.join_texts([text], [1], 4, adapters=[(used,)]) is first
    watched = weakref.ref(used.adapter)
    del used
    gc.collect()
    assert watched() is None
    like_it = AppliedAdapter(adapter(torch.zeros(5, 6), 1), 1.0)
    assert cache.join_texts([text], [1], 4, adapters=[(like_it,)]) is not first


def test_a_call_that_fails_leaves_no_updates_behind() -> None:
    network, x = updated(nn.Linear(6, 5)), torch.randn(2, 6)
    plain = network(x)
    own = (AppliedAdapter(adapter(network.layer.weight, 1), 1.0),)
    with pytest.raises(RuntimeError), network.row_updates.of([own], [2]):
        network(torch.randn(2, 7))
    assert torch.equal(network(x), plain)


def test_a_copy_has_updates_of_its_own() -> None:
    network, x = updated(nn.Linear(6, 5)), torch.randn(2, 6)
    copied, plain = copy.deepcopy(network), network(x)
    own = (AppliedAdapter(adapter(network.layer.weight, 1), 1.0),)
    with copied.row_updates.of([own], [2]):
        assert torch.equal(network(x), plain)
        assert not torch.allclose(copied(x), plain, atol=1e-2)


def test_convolutions_of_other_kinds_keep_their_way() -> None:
    for layer in (nn.Conv2d(6, 6, 3, groups=2), nn.Conv2d(6, 6, 3, padding_mode="circular")):
        assert not isinstance(updated(layer).layer, UpdatedConv2d)
