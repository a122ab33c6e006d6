"""Linear layers on a CPU through oneDNN.

torch multiplies float32 matrices with MKL, which on other processors than Intel's takes twice as
long as oneDNN, by which torch computes its convolutions. ADR 8 has the figures.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.diffusion.cross_attention_cache import Projected

M = TypeVar("M", bound=nn.Module)
_OF_TEXTS = (".attn2.to_k", ".attn2.to_v")


class OneDnnLinear(nn.Linear):
    """The same layer; its sums are added up in another order."""

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


def by_one_dnn(module: M) -> M:
    """The module itself, its linear layers changed where that is faster."""
    if torch.backends.mkldnn.is_available():
        for name, layer in module.named_modules():
            if type(layer) is nn.Linear and _is_plain(layer.weight):
                layer.__class__ = TextLinear if name.endswith(_OF_TEXTS) else OneDnnLinear
    return module


def _is_plain(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32
