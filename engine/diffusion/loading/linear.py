"""Linear layers that oneDNN computes on a CPU.

torch multiplies float32 matrices with MKL and computes convolutions with oneDNN. On processors of
other makers than Intel, MKL takes twice as long as oneDNN. ADR 8 has the figures.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.diffusion.cross_attention_cache import CrossAttentionCache
from engine.diffusion.row_updates import UpdatedLinear

M = TypeVar("M", bound=nn.Module)
_TEXT_PROJECTIONS = (".attn2.to_k", ".attn2.to_v")
"""The layers of a UNet that make keys and values of texts, as diffusers names them."""


class OneDnnLinear(UpdatedLinear):
    """Takes the place of a linear layer and shares its parameters.

    oneDNN adds in another order, so the results differ by rounding.
    """

    def product(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return found


class CrossAttentionLinear(OneDnnLinear):
    """Projects texts to keys or values of cross-attention, once for all calls with these texts."""

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
    """Replace the linear layers inside a module where oneDNN is faster; returns the module.

    With a `cache`, the layers that make keys and values of texts keep them in it.
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
