"""Merges the weights of two models into a new model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from engine.diffusion.adapters import Adapters, key_of
from engine.diffusion.loading.layout import unet_names
from engine.diffusion.loading.networks import prepared, require_unet
from engine.diffusion.loading.store import ModelStore
from engine.diffusion.model import Model
from engine.diffusion.patches.variants import sharing_copy
from engine.diffusion.text.encoding import Clip
from engine.diffusion.text.text_encoders import TextEncoder
from engine.errors import EngineError

_CONFIG = ("block_out_channels", "cross_attention_dim", "transformer_layers_per_block")
"""Keys of a UNet's configuration whose values are the same for all UNets of one family."""


Shares: TypeAlias = tuple[float, float]
"""The factors of the first and of the second model's weight in a merged weight."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The shares for each weight, by prefixes of the weights' names in checkpoint files.

    The longest matching prefix applies. If no prefix matches, the first shares apply.
    """

    by_prefix: tuple[tuple[str, Shares], ...]

    def shares(self, key: str) -> Shares:
        found = [each for each in self.by_prefix if key.startswith(each[0])]
        return max(found, key=lambda each: len(each[0]), default=self.by_prefix[0])[1]


def mix_key(first: Hashable, second: Hashable, mix: Mix) -> Hashable:
    """Return the key of a merge. `first` and `second` are from `unet_key` or `clip_key`."""
    return "mix", first, second, mix


def unet_key(model: Model) -> Hashable:
    """Return a key for a UNet with its adapters. The key does not keep either in memory."""
    return weakref.ref(model.unet), key_of(model.adapters)


def clip_key(clip: Clip) -> Hashable:
    """Return a key that is equal for the same text encoders."""
    return tuple(map(weakref.ref, clip.encoders))


def mixed_unet(store: ModelStore, first: Model, second: Model, mix: Mix) -> Any:
    """Return a merged UNet. Raises EngineError for transformers and for different families."""
    for each in (first, second):
        require_unet(each.unet)
    configs = [tuple(each.unet.config.get(name) for name in _CONFIG) for each in (first, second)]
    if configs[0] != configs[1]:
        raise EngineError("models of different families cannot be merged: their layers differ")

    def create() -> Any:
        names = unet_names(dict(first.unet.named_parameters()), first.unet.config)
        store.free_for(sum(each.nbytes for each in first.unet.parameters()))
        made = _mixed(
            first.unet,
            _weights(first.unet, first.adapters),
            _weights(second.unet, second.adapters),
            lambda name: mix.shares(names.get(name, name)),
        )
        return prepared(made, store.unets)

    return store.get_or_create(mix_key(unet_key(first), unet_key(second), mix), create)


def mixed_encoders(
    store: ModelStore, first: Clip, second: Clip, mix: Mix
) -> tuple[TextEncoder, ...]:
    """Return merged text encoders. Raises EngineError if their kinds differ."""
    kinds = [
        [(each.spec.embedding_key, each.width) for each in one.encoders] for one in (first, second)
    ]
    if kinds[0] != kinds[1]:
        raise EngineError("text encoders of different families cannot be merged")
    pairs = enumerate(zip(first.encoders, second.encoders, strict=True))
    key = mix_key(clip_key(first), clip_key(second), mix)
    return tuple(
        store.get_or_create((at, key), partial(_mixed_encoder, one, other, mix))
        for at, (one, other) in pairs
    )


def _mixed_encoder(first: TextEncoder, second: TextEncoder, mix: Mix) -> TextEncoder:
    made: TextEncoder = _mixed(
        first, _weights(first), _weights(second), mix.shares, rounded_to=torch.float16
    )
    return made


def _weights(module: nn.Module, adapters: Adapters = ()) -> Callable[[str], Tensor | None]:
    """Return a function that returns a weight of the module in float32, changed by the adapters.

    The function returns None for the name of a weight that the module does not have.
    """
    own: Mapping[str, Tensor] = dict(module.named_parameters())

    def weight(name: str) -> Tensor | None:
        if name not in own:
            return None
        found = own[name].float()
        for each in adapters:
            for update in each.adapter.layers.get(name.removesuffix(".weight"), ()):
                found = found + update.dense().reshape(found.shape) * each.strength
        return found

    return weight


def _mixed(
    base: Any,
    first: Callable[[str], Tensor | None],
    second: Callable[[str], Tensor | None],
    shares_of: Callable[[str], Shares],
    *,
    rounded_to: torch.dtype | None = None,
) -> Any:
    """Return a copy of `base` with the merged weights.

    If a weight has another shape in the second model, the result is the weight of the first model
    times its share, as in ComfyUI.
    """
    made = sharing_copy(base)
    for name, weight in _parameters(base, first):
        shares, other = shares_of(name), second(name)
        if other is None:
            final = weight
        else:
            final = weight * shares[0]
            if other.shape == weight.shape:
                final = final.add_(other, alpha=shares[1])
        layer, _, last = name.rpartition(".")
        dtype = base.get_parameter(name).dtype
        final = (final if rounded_to is None else final.to(rounded_to)).to(dtype)
        setattr(made.get_submodule(layer), last, nn.Parameter(final, requires_grad=False))
    made.origin = None  # LoRAs that are merged later use this copy as their base.
    return made


def _parameters(
    base: nn.Module, weights: Callable[[str], Tensor | None]
) -> Iterator[tuple[str, Tensor]]:
    for name, _ in base.named_parameters():
        weight = weights(name)
        assert weight is not None
        yield name, weight
