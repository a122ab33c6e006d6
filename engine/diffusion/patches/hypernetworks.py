"""Hypernetworks in the attention layers of a UNet.

Each changes what keys and values are made of, of texts and of the picture itself, by the width of
that: as in the WebUI, which is where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from engine.diffusion.loading.attention import PlainAttention, use_plain_attention
from engine.diffusion.loading.hypernetworks import Hypernetwork
from engine.diffusion.model import Model
from engine.diffusion.patches.variants import variant_of
from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class _Applied:
    """A hypernetwork at a strength. Copies of a UNet share it."""

    network: Hypernetwork
    strength: float

    def __deepcopy__(self, _memo: Any) -> Self:
        return self

    def changed(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        pair = self.network.by_width.get(keys.shape[-1])
        if pair is None:
            return keys, values
        dtype = next(pair[0].parameters()).dtype
        more = (one(each.to(dtype)) for one, each in zip(pair, (keys, values), strict=True))
        first, second = (each.to(keys.dtype) * self.strength for each in more)
        return keys + first, values + second

    def patch(self, unet: Any) -> None:
        for layer in use_plain_attention(unet).modules():
            if isinstance(layer, PlainAttention):
                layer.changes = (*layer.changes, self)


def with_hypernetwork(model: Model, network: Hypernetwork, strength: float) -> Model:
    """The model with a UNet that shares the weights; equal settings give the same UNet.

    Raises EngineError for a hypernetwork that changes nothing of the width of the model's texts.
    """
    if not strength:
        return model
    applied = _Applied(network, strength)
    unet = variant_of(model.unet, applied, applied.patch)
    width = unet.config.cross_attention_dim
    if width not in network.by_width:
        widths = ", ".join(map(str, sorted(network.by_width)))
        raise EngineError(
            f"the hypernetwork is for another model: it changes what is {widths} wide, and the "
            f"texts of this model ({model.family}) are {width} wide"
        )
    return replace(model, unet=unet)
