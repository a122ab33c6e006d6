"""Attention layers of a UNet, without what diffusers does besides at every call.

Its layers ask for the signature of their processor each time, which takes as long as the product of
a small layer. The UNet of Stable Diffusion has 32 of them.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.vision.attended import AddedAttention

M = TypeVar("M", bound=nn.Module)
_UNUSED = ("group_norm", "spatial_norm", "norm_q", "norm_k", "norm_cross", "added_kv_proj_dim")
"""What such a layer may have, but none of Stable Diffusion's does."""


class ContextChange(Protocol):
    """Changes what a layer makes its keys and values of."""

    def changed(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]: ...


class PlainAttention(nn.Module):
    """Takes the place of a layer that projects and attends, and shares its parameters."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.heads = layer.heads
        self.changes: tuple[ContextChange, ...] = getattr(layer, "changes", ())
        self.to_q, self.to_k, self.to_v = layer.to_q, layer.to_k, layer.to_v
        self.to_out = layer.to_out
        self.added: list[AddedAttention] = []
        """What the rows of a call attend to beside their texts."""
        self.train(layer.training)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: None = None,
    ) -> Tensor:
        """(batch, n, width) of (batch, n, width), by the names of diffusers.

        `encoder_hidden_states`: (batch, m, text width); None: `hidden_states` themselves. No UNet
        call has a mask.
        """
        assert attention_mask is None
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        keys, values = self.sources(context)
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

    def sources(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """What keys and values are made of."""
        keys = values = context
        for each in self.changes:
            keys, values = each.changed(keys, values)
        return keys, values


def use_plain_attention(module: M) -> M:
    """Replace the attention layers inside a module that are plain ones; returns the module."""
    for name, layer in list(module.named_modules()):
        if type(layer) is Attention and _is_plain(layer):
            module.set_submodule(name, PlainAttention(layer))
    return module


def _is_plain(layer: Attention) -> bool:
    has_more = any(getattr(layer, name, None) is not None for name in _UNUSED)
    is_scaled = layer.residual_connection or layer.rescale_output_factor != 1.0
    processor: object = layer.processor  # diffusers types it as one of all its processors
    return type(processor) is AttnProcessor2_0 and not has_more and not is_scaled
