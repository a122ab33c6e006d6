"""Keys and values that are kept with the texts of a UNet's last call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from engine.diffusion.cross_attention_cache import KeptTexts, joined
from engine.diffusion.loading.linear import TextLinear, use_one_dnn

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


class Attention(nn.Module):
    """As a UNet names its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attn2 = nn.ModuleDict({"to_q": nn.Linear(5, 4), "to_k": nn.Linear(5, 4)})


def layers() -> tuple[nn.Module, nn.Module]:
    """What is asked for queries and for keys."""
    network = nn.Sequential(Attention()).requires_grad_(False)
    found = use_one_dnn(network)[0].attn2
    return found["to_q"], found["to_k"]


def texts(count: int, tokens: int = 77) -> list[Tensor]:
    return [torch.randn(1, tokens, 5) for _ in range(count)]


def test_only_keys_and_values_of_texts_are_kept() -> None:
    queries, keys = layers()
    assert (type(queries) is TextLinear, type(keys) is TextLinear) == (False, True)


def test_they_are_computed_once_for_the_same_texts() -> None:
    _, keys = layers()
    kept, given = KeptTexts(), texts(2)
    first = keys(kept.joined(given, [1, 2], 77))
    assert keys(kept.joined(given, [1, 2], 77)) is first
    torch.testing.assert_close(
        first, nn.functional.linear(joined(given, [1, 2], 77), keys.weight, keys.bias)
    )


@pytest.mark.parametrize("change", ["text", "size", "length", "order"])
def test_another_call_is_computed_anew(change: str) -> None:
    _, keys = layers()
    kept, given = KeptTexts(), texts(2)
    keys(kept.joined(given, [1, 2], 77))
    sizes, length = [1, 2], 77
    if change == "text":
        given = [given[0], *texts(1)]
    elif change == "size":
        sizes = [2, 2]
    elif change == "length":
        length = 154
    else:
        given = given[::-1]
    expected = nn.functional.linear(joined(given, sizes, length), keys.weight, keys.bias)
    torch.testing.assert_close(keys(kept.joined(given, sizes, length)), expected)


def test_a_text_that_took_the_place_of_another_is_not_taken_for_it() -> None:
    _, keys = layers()
    kept = KeptTexts()
    for _ in range(20):
        given = texts(1)
        expected = nn.functional.linear(given[0], keys.weight, keys.bias)
        torch.testing.assert_close(keys(kept.joined(given, [1], 77)), expected)


def test_layers_keep_their_own_and_copies_of_a_unet_too() -> None:
    _, keys = layers()
    _, others = layers()
    kept, given = KeptTexts(), texts(1)
    shared = kept.joined(given, [1], 77)
    assert not torch.equal(keys(shared), others(shared))
    assert copy.deepcopy(kept).joined(given, [1], 77) is not shared


def test_what_is_beyond_the_limit_is_computed_each_time() -> None:
    _, keys = layers()
    tokens = KeptTexts(limit_bytes=77 * 4 * 4 - 1).joined(texts(1), [1], 77)
    first = keys(tokens)
    assert keys(tokens) is not first
    assert torch.equal(keys(tokens), first)


def test_tokens_that_nobody_keeps_are_computed_each_time() -> None:
    _, keys = layers()
    (tokens,) = texts(1)
    assert keys(tokens) is not keys(tokens)
