"""Layers that replace others: linear ones, with the cache of cross-attention, and attention."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable

import pytest
import torch
from diffusers.models.attention_processor import Attention
from torch import Tensor, nn

from engine.diffusion.loading.layers import (
    CrossAttentionCache,
    CrossAttentionLinear,
    OneDnnLinear,
    PlainAttention,
    join_texts,
    use_one_dnn,
    use_plain_attention,
)

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "x",
    [
        torch.randn(5),
        torch.randn(7, 5),
        torch.randn(2, 3, 5),
        torch.randn(5, 3, 2).movedim(0, -1),
        torch.randn(6, 5)[::2],
        torch.randn(1, 5).expand(4, 5),
        torch.randn(0, 5),
    ],
    ids=["vector", "rows", "batch", "strided", "every second", "expanded", "none"],
)
def test_the_answer_is_that_of_torch(x: Tensor, bias: bool) -> None:
    network = nn.Sequential(nn.Linear(5, 4, bias=bias)).requires_grad_(False)
    expected = network(x)
    torch.testing.assert_close(use_one_dnn(network)(x), expected, rtol=1e-6, atol=1e-6)


def test_weights_that_are_replaced_count() -> None:
    (layer,) = use_one_dnn(nn.Sequential(nn.Linear(5, 4)).requires_grad_(False))
    layer.weight = nn.Parameter(torch.zeros(4, 5), requires_grad=False)
    assert torch.equal(layer(torch.randn(3, 5)), layer.bias.expand(3, 4))


def test_only_plain_float32_layers_of_a_cpu_are_changed() -> None:
    class Scaled(nn.Linear):
        pass

    network = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3).half(), nn.Conv2d(3, 3, 1))
    network.extend([nn.Linear(3, 2, device="meta"), Scaled(5, 4)])
    kinds = [OneDnnLinear, nn.Linear, nn.Conv2d, nn.Linear, Scaled]
    assert [type(layer) for layer in use_one_dnn(network)] == kinds


@pytest.mark.parametrize("replace", [use_one_dnn, use_plain_attention])
def test_a_replaced_layer_keeps_its_place_its_parameters_and_its_mode(
    replace: Callable[[nn.Module], nn.Module],
) -> None:
    network = self_attention()
    network.append(nn.ModuleDict({"to_q": nn.Linear(4, 3, bias=False)}))
    before = dict(network.eval().named_parameters())
    after = dict(replace(network).named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is each for name, each in before.items())
    assert not any(module.training for module in network.modules())


def network_with(cache: CrossAttentionCache) -> nn.Module:
    """Layers with the names that they have in a UNet."""
    layers = nn.ModuleDict({to: nn.Linear(5, 4) for to in ("to_q", "to_k", "to_v")})
    network = nn.Sequential(nn.ModuleDict({"attn2": layers}))
    return use_one_dnn(network.requires_grad_(False), cache)


def keys_with(cache: CrossAttentionCache) -> nn.Module:
    """The layer that makes keys."""
    return network_with(cache).get_submodule("0.attn2.to_k")


def texts(count: int, tokens: int = 77) -> list[Tensor]:
    return [torch.randn(1, tokens, 5) for _ in range(count)]


def test_only_keys_and_values_of_texts_are_kept() -> None:
    layers = network_with(CrossAttentionCache()).get_submodule("0.attn2")
    kept = [to for to, each in layers.named_children() if isinstance(each, CrossAttentionLinear)]
    assert kept == ["to_k", "to_v"]


def test_they_are_computed_once_for_the_same_texts() -> None:
    cache, given = CrossAttentionCache(), texts(2)
    keys = keys_with(cache)
    first = keys(cache.join_texts(given, [1, 2], 77))
    assert keys(cache.join_texts(given, [1, 2], 77)) is first
    torch.testing.assert_close(
        first, nn.functional.linear(join_texts(given, [1, 2], 77), keys.weight, keys.bias)
    )


@pytest.mark.parametrize(
    ("places", "sizes", "length"),
    [((0, 2), [1, 2], 77), ((0, 1), [2, 2], 77), ((0, 1), [1, 2], 154), ((1, 0), [1, 2], 77)],
    ids=["text", "size", "length", "order"],
)
def test_another_call_is_computed_anew(
    places: tuple[int, int], sizes: list[int], length: int
) -> None:
    cache, known = CrossAttentionCache(), texts(3)
    keys = keys_with(cache)
    keys(cache.join_texts(known[:2], [1, 2], 77))
    given = [known[place] for place in places]
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
    layers = network_with(cache).get_submodule("0.attn2")
    shared = cache.join_texts(texts(1), [1], 77)
    assert not torch.equal(*(layers.get_submodule(to)(shared) for to in ("to_k", "to_v")))


def test_a_copy_of_a_network_has_a_cache_of_its_own() -> None:
    cache, given = CrossAttentionCache(), texts(1)
    network = network_with(cache)
    shared = cache.join_texts(given, [1], 77)
    network.get_submodule("0.attn2.to_k")(shared)
    copied_network, copied_cache = copy.deepcopy((network, cache))
    copied = copied_cache.join_texts(given, [1], 77)
    assert copied is not shared
    keys = copied_network.get_submodule("0.attn2.to_k")
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


WIDTH, HEADS, TEXT_WIDTH = 16, 2, 12


def self_attention(**options: object) -> nn.Sequential:
    layer = Attention(WIDTH, heads=HEADS, dim_head=WIDTH // HEADS, **options)  # type: ignore[arg-type]
    return nn.Sequential(layer).requires_grad_(False).eval()


@pytest.mark.parametrize("text", [None, torch.randn(3, 7, TEXT_WIDTH)], ids=["self", "cross"])
def test_plain_attention_answers_exactly_as_that_of_diffusers(text: Tensor | None) -> None:
    network = self_attention(cross_attention_dim=None if text is None else TEXT_WIDTH)
    x = torch.randn(3, 5, WIDTH)
    expected = network[0](x, encoder_hidden_states=text)
    (layer,) = use_plain_attention(network)
    assert type(layer) is PlainAttention
    assert torch.equal(layer(x, encoder_hidden_states=text, attention_mask=None), expected)


@pytest.mark.parametrize(
    "options",
    [{"norm_num_groups": 4}, {"residual_connection": True}, {"rescale_output_factor": 2.0}],
    ids=str,
)
def test_attention_that_does_more_keeps_its_way(options: dict[str, object]) -> None:
    (layer,) = use_plain_attention(self_attention(**options))
    assert type(layer) is Attention
