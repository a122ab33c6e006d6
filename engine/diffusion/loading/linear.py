"""Linear layers that oneDNN computes on a CPU.

torch multiplies float32 matrices with MKL and computes convolutions with oneDNN. On processors of
other makers than Intel, MKL takes twice as long as oneDNN. ADR 8 has the figures.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.diffusion.cross_attention_cache import Projected

M = TypeVar("M", bound=nn.Module)
_OF_TEXTS = (".attn2.to_k", ".attn2.to_v")


class OneDnnLinear(nn.Linear):
    """Takes the place of a linear layer and shares its parameters.

    oneDNN adds in another order, so the results differ by rounding.
    """

    def __init__(self, layer: nn.Linear) -> None:
        has_bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, bias=has_bias, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, "none", [], ""
        )
        return found


class TextLinear(OneDnnLinear):
    """Keys or values of cross-attention, which are kept with the texts that they are of."""

    def forward(self, x: Tensor) -> Tensor:
        projected: Projected | None = getattr(x, "projected", None)
        if projected is None:
            return super().forward(x)
        return projected.of(self, lambda: OneDnnLinear.forward(self, x))


def use_one_dnn(module: M) -> M:
    """Replace the linear layers inside a module where oneDNN is faster; returns the module."""
    if torch.backends.mkldnn.is_available():
        for name, layer in list(module.named_modules()):
            if type(layer) is nn.Linear and _is_float32_on_cpu(layer.weight):
                kind = TextLinear if name.endswith(_OF_TEXTS) else OneDnnLinear
                module.set_submodule(name, kind(layer))
    return module


def _is_float32_on_cpu(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
