"""Faster replacements for layers of torch and diffusers.

On a CPU, torch multiplies float32 matrices with MKL. On processors that Intel did not make, MKL
takes twice as long as oneDNN, so the linear layers of this module use oneDNN. torch's operator for
oneDNN is private, and a new version of torch may rename it.

An attention layer of diffusers inspects the signature of its processor at each call. This takes as
long as the product of a small layer, and the UNet of Stable Diffusion has 32 attention layers.

Keys and values of cross-attention depend only on the texts. A batch has mostly the same texts in
every step, so the keys and values are kept from one UNet call to the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.adapters import Adapters, UpdatedLinear, key_of
from engine.diffusion.vision.attended import AddedAttention

_LIMIT_BYTES = 256 * 2**20
"""The limit for each UNet. Keys and values beyond the limit are computed again at each call."""


class CrossAttentionCache:
    """Keeps the texts of a UNet's last call, and the keys and values computed from the texts.

    A deep copy of the cache is empty, because a copy of a UNet may get other weights.
    """

    def __init__(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._texts: tuple[Tensor, ...] = ()
        self._key: Hashable = None
        self._joined = torch.empty(0)
        self._projections: dict[str, Tensor] = {}
        self._free_bytes = limit_bytes

    def __deepcopy__(self, _memo: Any) -> CrossAttentionCache:
        return CrossAttentionCache(self._limit_bytes)

    def join_texts(
        self,
        texts: Sequence[Tensor],
        sizes: Sequence[int],
        length: int,
        *,
        adapters: Sequence[Adapters] = (),
    ) -> Tensor:
        """Like the function `join_texts`, but returns the same tensor object for the same texts.

        The `adapters` of each text must be the same as well, because they change the projections.
        """
        # Tensors are compared by identity, so their values are not read. The encoder caches its
        # results, so a job uses the same tensors in every step.
        of_texts = tuple((id(text), size) for text, size in zip(texts, sizes, strict=True))
        key = length, of_texts, tuple(map(key_of, adapters))
        if key != self._key:
            # While the cache refers to the texts, no other tensor can get their ids.
            self._key, self._texts = key, tuple(texts)
            self._joined = join_texts(texts, sizes, length)
            self._projections, self._free_bytes = {}, self._limit_bytes
        return self._joined

    def get(self, layer: str, texts: Tensor) -> Tensor | None:
        """Return the kept keys or values that the layer computed from `texts`, or None."""
        return self._projections.get(layer) if texts is self._joined else None

    def put(self, layer: str, texts: Tensor, projection: Tensor) -> None:
        """Keep a layer's keys or values if `texts` is the last joined tensor, up to the limit."""
        if texts is self._joined and projection.nbytes <= self._free_bytes:
            self._free_bytes -= projection.nbytes
            self._projections[layer] = projection


def join_texts(texts: Sequence[Tensor], sizes: Sequence[int], length: int) -> Tensor:
    """Join texts (1 or size, tokens, width) to one tensor (rows, length, width).

    `sizes` has the number of rows of each text. The tokens of a text are repeated to `length`
    tokens, a multiple of their number. Repetition does not change the result of attention.
    """
    return torch.cat(
        [
            text.expand(size, -1, -1).repeat(1, length // text.shape[1], 1)
            for text, size in zip(texts, sizes, strict=True)
        ]
    )


M = TypeVar("M", bound=nn.Module)
_TEXT_PROJECTIONS = (".attn2.to_k", ".attn2.to_v")
"""diffusers' names of the UNet layers that make keys and values from texts."""


class OneDnnLinear(UpdatedLinear):
    """Replaces a linear layer and shares its parameters.

    oneDNN sums in another order than MKL, so the results of the two layers differ by rounding.
    """

    def product(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return found


class CrossAttentionLinear(OneDnnLinear):
    """Projects texts to keys or values. Successive calls with the same texts share one result."""

    def __init__(self, layer: nn.Linear, name: str, cache: CrossAttentionCache) -> None:
        super().__init__(layer)
        self._name = name
        self._cache = cache

    def forward(self, x: Tensor) -> Tensor:
        found = self._cache.get(self._name, x)
        if found is None:
            found = super().forward(x)
            self._cache.put(self._name, x, found)
        return found


def use_one_dnn(module: M, cache: CrossAttentionCache | None = None) -> M:
    """Replace the float32 linear layers of a module that is on a CPU. Returns the module.

    The layers that make keys and values from texts use the `cache`.
    """
    if torch.backends.mkldnn.is_available():
        for name, layer in list(module.named_modules()):
            if type(layer) is nn.Linear and _is_float32_on_cpu(layer.weight):
                module.set_submodule(name, _replacement(layer, name, cache))
    return module


def _replacement(layer: nn.Linear, name: str, cache: CrossAttentionCache | None) -> OneDnnLinear:
    if cache is not None and name.endswith(_TEXT_PROJECTIONS):
        return CrossAttentionLinear(layer, name, cache)
    return OneDnnLinear(layer)


def _is_float32_on_cpu(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32


_UNSUPPORTED = ("group_norm", "spatial_norm", "norm_q", "norm_k", "norm_cross", "added_kv_proj_dim")
"""Attributes of attention layers that `PlainAttention` does not support."""


class ContextChange(Protocol):
    """Changes the inputs from which a layer computes keys and values."""

    def changed(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]: ...


class PlainAttention(nn.Module):
    """Replaces a plain attention layer of diffusers and shares its parameters."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.heads = layer.heads
        self.changes: tuple[ContextChange, ...] = getattr(layer, "changes", ())
        self.to_q, self.to_k, self.to_v = layer.to_q, layer.to_k, layer.to_v
        self.to_out = layer.to_out
        self.added: list[AddedAttention] = []
        """Image prompts, to which some rows of the call attend in addition to their texts."""
        self.train(layer.training)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: None = None,
    ) -> Tensor:
        """Return a tensor (batch, n, width), which is also the shape of `hidden_states`.

        `encoder_hidden_states` is (batch, m, text width). If it is None, the layer attends to
        `hidden_states`. No UNet call has a mask. diffusers determines the parameters' names.
        """
        assert attention_mask is None
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        keys, values = self.key_and_value_inputs(context)
        query, key, value = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.to_q(hidden_states), self.to_k(keys), self.to_v(values))
        )
        found = functional.scaled_dot_product_attention(query, key, value)
        for each in self.added:
            each.add_to(found, query)
        projection, dropout = self.to_out
        projected: Tensor = dropout(projection(found.transpose(1, 2).flatten(2)))
        return projected

    def key_and_value_inputs(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of `to_k` and `to_v` for texts or hidden states."""
        keys = values = context
        for each in self.changes:
            keys, values = each.changed(keys, values)
        return keys, values


def use_plain_attention(module: M) -> M:
    """Replace the plain attention layers in a module. Returns the module."""
    for name, layer in list(module.named_modules()):
        if type(layer) is Attention and _is_plain(layer):
            module.set_submodule(name, PlainAttention(layer))
    return module


def _is_plain(layer: Attention) -> bool:
    has_more = any(getattr(layer, name, None) is not None for name in _UNSUPPORTED)
    is_scaled = layer.residual_connection or layer.rescale_output_factor != 1.0
    processor: object = layer.processor  # diffusers declares the type as a union of all processors.
    return type(processor) is AttnProcessor2_0 and not has_more and not is_scaled
