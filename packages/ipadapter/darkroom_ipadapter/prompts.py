"""Makes image prompts from pictures, as in IP-Adapter (Ye et al. 2023, arXiv:2308.06721).

An image prompt consists of tokens to which a UNet attends in addition to the text.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from darkroom_ipadapter.adapter import Adapter
from darkroom_ipadapter.weights import LayerWeight
from engine.batcher import Request
from engine.diffusion.vision.attended import KeysValues

_PENALTY_WIDTH = 1280


@dataclass(slots=True, eq=False)
class Project(Request):
    """Computes the keys and values of each picture for each layer."""

    adapter: Adapter
    encoded: Tensor
    """(pictures, width), or (pictures, patches, width)."""
    is_urgent: bool = True

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.encoded)

    @property
    def key(self) -> Hashable:
        return "ip-adapter", id(self.adapter), self.encoded.shape[1:]

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[list[KeysValues]]:
        """Return keys and values (pictures, tokens, width of the layer) per request and layer."""
        adapter = requests[0].adapter
        tokens = adapter.projection(
            torch.cat([each.encoded for each in requests]).to(adapter.to_keys[0])
        )
        layers = zip(adapter.to_keys, adapter.to_values, strict=True)
        sizes = [len(each.encoded) for each in requests]
        found: list[list[KeysValues]] = [[] for _ in requests]
        for weights in layers:
            keys, values = (functional.linear(tokens, each).split(sizes) for each in weights)
            for own, *pair in zip(found, keys, values, strict=True):
                own.append(KeysValues(*pair))
        return found


def combined(encoded: Tensor, how: str) -> Tensor:
    """Combine the encodings of several pictures to one, except with the method "concat"."""
    if how == "concat" or len(encoded) == 1:
        return encoded
    match how:
        case "add":
            one = encoded.sum(0)
        case "subtract":
            one = encoded[0] - encoded[1:].mean(0)
        case "average":
            one = encoded.mean(0)
        case _:
            one = (encoded / encoded.norm(dim=0, keepdim=True)).mean(0)
    return one[None]


def with_count(encoded: Tensor, count: int) -> Tensor:
    """Return `count` encodings: repeat the last encoding, or drop encodings at the end."""
    return encoded[torch.arange(count).clamp(max=len(encoded) - 1)]


def weighted(pair: KeysValues, weight: float, scaling: str) -> KeysValues:
    """Return the weighted keys and values of a layer for all pictures, (1, tokens, width)."""
    keys, values = pair.keys, pair.values
    if scaling.endswith("C penalty"):
        weight *= keys.shape[2] / _PENALTY_WIDTH
    # The keys are copied, because a view would keep the tensor of the whole call in memory.
    keys = keys * weight if scaling.startswith("K") else keys.clone()
    mean = values.mean(1, keepdim=True) if "mean(V)" in scaling else 0.0
    changed = values - mean + mean * weight if "mean(V)" in scaling else values * weight
    return KeysValues(keys.flatten(0, 1)[None], changed.flatten(0, 1)[None])


def for_both_conditionings(
    positive: KeysValues, negative: KeysValues, weight: LayerWeight, scaling: str
) -> tuple[KeysValues, KeysValues]:
    """Return the keys and values of a layer for the positive and the negative conditioning."""
    changed = weighted(positive, weight.weight, scaling)
    if weight.is_swapped:
        nothing = KeysValues(torch.zeros_like(changed.keys), torch.zeros_like(changed.values))
        return nothing, changed
    return changed, weighted(negative, weight.weight, scaling)
