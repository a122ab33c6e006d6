"""Networks whose images go on at the opposite edge, so that copies of one fit side by side."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.patches.variants import variant_of

M = TypeVar("M", bound=nn.Module)


def seamless(network: M) -> M:
    """The network with circular instead of zero padding, and a seamless one itself."""
    if getattr(network, "is_seamless", False):
        return network
    found: M = variant_of(network, "seamless", _pad_around)
    return found


def _pad_around(network: Any) -> None:
    network.is_seamless = True
    for layer in network.modules():
        if not isinstance(layer, nn.Conv2d) or layer.padding in ((0, 0), "valid"):
            continue
        high, wide = (int(side) for side in layer.padding)
        layer.padding = (0, 0)

        def pad(
            _layer: nn.Module,
            inputs: tuple[Any, ...],
            _sides: tuple[Any, ...] = (wide, wide, high, high),
        ) -> tuple[Tensor, ...]:
            x, *rest = inputs
            return functional.pad(x, _sides, mode="circular"), *rest

        layer.register_forward_pre_hook(pad)
