"""Keys and values that a UNet keeps for the texts of its last call."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.cross_attention_cache import CrossAttentionCache, join_texts
from engine.diffusion.loading.linear import CrossAttentionLinear, use_one_dnn

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


class Attention(nn.Module):
    """Has layers with the names that they have in a UNet."""

    def __init__(self) -> None:
        super().__init__()
        self.attn2 = nn.ModuleDict({to: nn.Linear(5, 4) for to in ("to_q", "to_k", "to_v")})


def network_with(cache: CrossAttentionCache) -> nn.Module:
    return use_one_dnn(nn.Sequential(Attention()).requires_grad_(False), cache)


def keys_with(cache: CrossAttentionCache) -> nn.Module:
    """The layer that makes keys."""
    return network_with(cache).get_submodule("0.attn2.to_k")


def texts(count: int, tokens: int = 77) -> list[Tensor]:
    return [torch.randn(1, tokens, 5) for _ in range(count)]


def test_only_keys_and_values_of_texts_are_kept() -> None:
    layers = network_with(CrossAttentionCache())[0].attn2
    kept = [isinstance(layers[to], CrossAttentionLinear) for to in ("to_q", "to_k", "to_v")]
    assert kept == [False, True, True]


def test_they_are_computed_once_for_the_same_texts() -> None:
    cache, given = CrossAttentionCache(), texts(2)
    keys = keys_with(cache)
    first = keys(cache.join_texts(given, [1, 2], 77))
    assert keys(cache.join_texts(given, [1, 2], 77)) is first
    torch.testing.assert_close(
        first, nn.functional.linear(join_texts(given, [1, 2], 77), keys.weight, keys.bias)
    )


@pytest.mark.parametrize("change", ["text", "size", "length", "order"])
def test_another_call_is_computed_anew(change: str) -> None:
    cache, given = CrossAttentionCache(), texts(2)
    keys = keys_with(cache)
    keys(cache.join_texts(given, [1, 2], 77))
    sizes, length = [1, 2], 77
    if change == "text":
        given = [given[0], *texts(1)]
    elif change == "size":
        sizes = [2, 2]
    elif change == "length":
        length = 154
    else:
        given = given[::-1]
    expected = nn.functional.linear(join_texts(given, sizes, length), keys.weight, keys.bias)
    torch.testing.assert_close(keys(cache.join_texts(given, sizes, length)), expected)


def test_a_text_that_took_the_place_of_another_is_not_taken_for_it() -> None:
    cache = CrossAttentionCache()
    keys = keys_with(cache)
    for _ in range(20):
        given = texts(1)
        expected = nn.functional.linear(given[0], keys.weight, keys.bias)
        torch.testing.assert_close(keys(cache.join_texts(given, [1], 77)), expected)


def test_layers_keep_their_own() -> None:
    cache = CrossAttentionCache()
    layers = network_with(cache)[0].attn2
    shared = cache.join_texts(texts(1), [1], 77)
    assert not torch.equal(layers["to_k"](shared), layers["to_v"](shared))


def test_a_copy_of_a_network_has_a_cache_of_its_own() -> None:
    cache, given = CrossAttentionCache(), texts(1)
    network = network_with(cache)
    shared = cache.join_texts(given, [1], 77)
    network[0].attn2["to_k"](shared)
    copied_network, copied_cache = copy.deepcopy((network, cache))
    copied = copied_cache.join_texts(given, [1], 77)
    assert copied is not shared
    keys = copied_network[0].attn2["to_k"]
    keys.weight.zero_()
    found = keys(copied)
    assert torch.equal(found, keys.bias.expand_as(found))
    assert keys(copied) is found


def test_a_network_that_nobody_holds_is_freed_at_once_with_its_cache() -> None:
    cache = CrossAttentionCache()
    network = network_with(cache)
    keys = network.get_submodule("0.attn2.to_k")
    keys(cache.join_texts(texts(1), [1], 77))
    watched = [weakref.ref(each) for each in (cache, network, keys)]
    del cache, network, keys
    assert [each() for each in watched] == [None, None, None]


def test_what_is_beyond_the_limit_is_computed_each_time() -> None:
    cache = CrossAttentionCache(limit_bytes=77 * 4 * 4 - 1)
    keys = keys_with(cache)
    tokens = cache.join_texts(texts(1), [1], 77)
    first = keys(tokens)
    assert keys(tokens) is not first
    assert torch.equal(keys(tokens), first)


def test_tokens_that_nobody_keeps_are_computed_each_time() -> None:
    keys = keys_with(CrossAttentionCache())
    (tokens,) = texts(1)
    assert keys(tokens) is not keys(tokens)
