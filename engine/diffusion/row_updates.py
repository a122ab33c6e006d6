"""Layers of a UNet that add to each row of a call the low-rank updates of its own LoRAs.

Rows of different LoRAs share the product with the weights of the base, and each adds its own
`strength * up @ (down @ x)`: Punica, Chen et al. 2023 (arXiv:2310.18547), and S-LoRA, Sheng et al.
2023 (arXiv:2311.03285). A convolution's update is a convolution to `rank` channels with the kernel
of the layer, then a 1 x 1 convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.adapters import Adapters

M = TypeVar("M", bound=nn.Module)


class RowUpdate(NamedTuple):
    """What one LoRA adds to some rows of a layer's output. For the matrices see `LowRank`."""

    rows: slice
    down: Tensor
    up: Tensor
    strength: float


class UpdatedLinear(nn.Linear):
    """Takes the place of a linear layer and shares its parameters. `updates` are those of a call.

    The first dimension of its input is the rows.
    """

    def __init__(self, layer: nn.Linear) -> None:
        has_bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, bias=has_bias, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)
        self.updates: list[RowUpdate] = []

    def forward(self, x: Tensor) -> Tensor:
        found = self.product(x)
        for rows, down, up, strength in self.updates:
            low = functional.linear(x[rows], down).flatten(0, -2)
            found[rows].view(-1, self.out_features).addmm_(low, up.T, alpha=strength)
        return found

    def product(self, x: Tensor) -> Tensor:
        """The output without updates."""
        return functional.linear(x, self.weight, self.bias)


class UpdatedConv2d(nn.Conv2d):
    """The same for a convolution that pads with zeros and has one group."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]  # torch's stubs lack the number of sides
            bias=layer.bias is not None,
            device="meta",
        )
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)
        self.updates: list[RowUpdate] = []

    def forward(self, x: Tensor) -> Tensor:
        found = self._convolved(x, self.weight, self.bias)
        for rows, down, up, strength in self.updates:
            low = self._convolved(x[rows], down, None).flatten(2)
            planes = found[rows].view(len(low), self.out_channels, -1)
            planes.baddbmm_(up.expand(len(low), -1, -1), low, alpha=strength)
        return found

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation)


class RowUpdates:
    """The updates of a UNet's layers. It belongs to the thread that calls the UNet.

    A deep copy of the UNet has its own.
    """

    def __init__(self, unet: nn.Module) -> None:
        self._by_layer = {
            name: layer.updates
            for name, layer in unet.named_modules()
            if isinstance(layer, UpdatedLinear | UpdatedConv2d)
        }

    @contextmanager
    def of(self, adapters: Sequence[Adapters], sizes: Sequence[int]) -> Iterator[None]:
        """Inside, a call of the UNet adds these: each of the `adapters` for `size` rows.

        Equal ones that follow one another are added together, in one product.
        """
        try:
            for rows, own in _row_slices(adapters, sizes):
                for each in own:
                    for name, matrices in each.adapter.layers.items():
                        update = RowUpdate(rows, matrices.down, matrices.up, each.strength)
                        self._by_layer[name].append(update)
            yield
        finally:
            for updates in self._by_layer.values():
                updates.clear()


def updated(
    unet: Any, adapters: Sequence[Adapters], sizes: Sequence[int]
) -> AbstractContextManager[None]:
    """Inside, the UNet adds to each row what its adapters say; see `RowUpdates.of`."""
    if not any(adapters):
        return nullcontext()
    updates: RowUpdates = unet.row_updates
    return updates.of(adapters, sizes)


def _row_slices(
    adapters: Sequence[Adapters], sizes: Sequence[int]
) -> Iterator[tuple[slice, Adapters]]:
    start = 0
    for own, same in groupby(zip(adapters, sizes, strict=True), key=itemgetter(0)):
        end = start + sum(size for _, size in same)
        yield slice(start, end), own
        start = end


def use_row_updates(unet: Any) -> None:
    """Replace the layers of a UNet by such that can be updated by row; see its `row_updates`."""
    for name, layer in list(unet.named_modules()):
        if type(layer) is nn.Linear:
            unet.set_submodule(name, UpdatedLinear(layer))
        elif type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            unet.set_submodule(name, UpdatedConv2d(layer))
    unet.row_updates = RowUpdates(unet)
