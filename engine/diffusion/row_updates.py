"""Layers of a network that add to each row of a call the low-rank updates of its own LoRAs.

Rows of different LoRAs share the product with the weights of the base, and each adds its own
`strength * up @ (down @ x)`: Punica, Chen et al. 2023 (arXiv:2310.18547), and S-LoRA, Sheng et al.
2023 (arXiv:2311.03285). A convolution's update is a convolution to `rank` channels with the kernel
of the layer, then a 1 x 1 convolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.adapters import Adapters, LowRank, Update

M = TypeVar("M", bound=nn.Module)


class RowUpdate(NamedTuple):
    """What one LoRA adds to some rows of a layer's output."""

    rows: slice
    update: Update
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
        for rows, update, strength in self.updates:
            update.add_to(found[rows], x[rows], strength)
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
        for rows, update, strength in self.updates:
            assert isinstance(update, LowRank)
            low = self._convolved(x[rows], update.down, None).flatten(2)
            planes = found[rows].view(len(low), self.out_channels, -1)
            planes.baddbmm_(update.up.expand(len(low), -1, -1), low, alpha=strength)
        return found

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation)


class RowUpdates:
    """The updates of a network's layers. It belongs to the thread that calls the network.

    A deep copy of the network has its own.
    """

    def __init__(self, network: nn.Module) -> None:
        self._by_layer = {
            name: layer.updates
            for name, layer in network.named_modules()
            if isinstance(layer, UpdatedLinear | UpdatedConv2d)
        }

    def cover(self, layers: Iterable[str]) -> bool:
        """Whether all of these layers can be updated by row."""
        return all(name in self._by_layer for name in layers)

    @contextmanager
    def of(
        self,
        adapters: Sequence[Adapters],
        sizes: Sequence[int],
        joined: Mapping[str, Sequence[int]] | None = None,
    ) -> Iterator[None]:
        """Inside, a call of the network adds these: each of the `adapters` for `size` rows.

        Equal ones that follow one another are added together, in one product. `joined` are layers
        to which a row is not one entry of the first axis, but so many.
        """
        bounds = {name: [0, *accumulate(lengths)] for name, lengths in (joined or {}).items()}
        try:
            for rows, own in _row_slices(adapters, sizes):
                for each in own:
                    for name, own_updates in each.adapter.layers.items():
                        span = rows
                        if entries := bounds.get(name):
                            span = slice(entries[rows.start], entries[rows.stop])
                        self._by_layer[name] += [
                            RowUpdate(span, update, each.strength) for update in own_updates
                        ]
            yield
        finally:
            for updates in self._by_layer.values():
                updates.clear()


def updated(
    network: Any,
    adapters: Sequence[Adapters],
    sizes: Sequence[int],
    joined: Mapping[str, Sequence[int]] | None = None,
) -> AbstractContextManager[None]:
    """Inside, the network adds to each row what its adapters say; see `RowUpdates.of`."""
    if not any(adapters):
        return nullcontext()
    updates: RowUpdates = network.row_updates
    return updates.of(adapters, sizes, joined)


def _row_slices(
    adapters: Sequence[Adapters], sizes: Sequence[int]
) -> Iterator[tuple[slice, Adapters]]:
    start = 0
    for own, same in groupby(zip(adapters, sizes, strict=True), key=itemgetter(0)):
        end = start + sum(size for _, size in same)
        yield slice(start, end), own
        start = end


def use_row_updates(network: Any) -> None:
    """Replace the layers of a network by such that can be updated by row; see its `row_updates`."""
    for name, layer in list(network.named_modules()):
        if type(layer) is nn.Linear:
            network.set_submodule(name, UpdatedLinear(layer))
        elif type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            network.set_submodule(name, UpdatedConv2d(layer))
    network.row_updates = RowUpdates(network)
