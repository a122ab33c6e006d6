"""LoRAs that are added to the outputs of layers for each row, not merged into the weights."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.diffusion.loading.store import Identity


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The two matrices of one layer. They add `up @ (down @ x)` to the output of the layer."""

    down: Tensor
    """(rank, in) for a linear layer, (rank, in, height, width) for a convolution."""
    up: Tensor
    """(out, rank), already multiplied by alpha / rank."""

    @property
    def size(self) -> int:
        """The number of elements in both matrices."""
        return self.down.numel() + self.up.numel()

    def add_to(self, output: Tensor, x: Tensor, strength: float) -> None:
        """Add the change for the input x, times `strength`, to the layer's output (…, out)."""
        low = functional.linear(x, self.down).flatten(0, -2)
        output.view(-1, output.shape[-1]).addmm_(low, self.up.T, alpha=strength)

    def dense(self) -> Tensor:
        """Return the change of the weight as (out, in * kernel size) float32."""
        return self.up.float() @ self.down.float().flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class Kronecker:
    """The two factors of one linear layer. They add `kron(first, second) @ x` to its output."""

    first: Tensor
    second: Tensor

    @property
    def size(self) -> int:
        """The number of elements in both factors."""
        return self.first.numel() + self.second.numel()

    def add_to(self, output: Tensor, x: Tensor, strength: float) -> None:
        """Like `LowRank.add_to`."""
        blocks = x.unflatten(-1, (self.first.shape[1], self.second.shape[1]))
        found = self.first @ functional.linear(blocks, self.second)
        output.add_(found.flatten(-2), alpha=strength)

    def dense(self) -> Tensor:
        """Like `LowRank.dense`."""
        return torch.kron(self.first.float(), self.second.float())


Update: TypeAlias = LowRank | Kronecker


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """The updates that a LoRA's file has for the denoising network, loaded into memory.

    The same adapter is used for all strengths of the LoRA.
    """

    path: Path
    identity: Identity
    layers: Mapping[str, tuple[Update, ...]]
    """The updates of each layer, by the layer's name in the network."""

    @property
    def size(self) -> int:
        """The number of elements in all matrices of the adapter."""
        return sum(each.size for updates in self.layers.values() for each in updates)


@dataclass(frozen=True, slots=True)
class AppliedAdapter:
    adapter: Adapter
    strength: float


Adapters: TypeAlias = tuple[AppliedAdapter, ...]
"""The adapters of one model. All of them apply to each row of the model."""


def key_of(adapters: Adapters) -> Hashable:
    """Return a key that is equal for the same adapters at the same strengths.

    The key does not keep the adapters in memory.
    """
    return tuple((weakref.ref(each.adapter), each.strength) for each in adapters)


M = TypeVar("M", bound=nn.Module)


class RowUpdate(NamedTuple):
    """The part of one LoRA that is added to some rows of a layer's output."""

    rows: slice
    update: Update
    strength: float


class UpdatedLinear(nn.Linear):
    """A linear layer that shares the parameters of `layer` and adds `updates` to its output.

    `updates` has the updates for the current call. The first axis of the input has the rows.
    """

    def __init__(self, layer: nn.Linear) -> None:
        has_bias = layer.bias is not None
        super().__init__(layer.in_features, layer.out_features, bias=has_bias, device="meta")
        self.weight, self.bias = layer.weight, layer.bias
        self.train(layer.training)
        self.updates: list[RowUpdate] = []

    def forward(self, x: Tensor) -> Tensor:
        # (W + s up down) x = W x + s up (down x). All rows of the call share the first product, and
        # each LoRA costs only two thin products for its own rows.
        found = self.product(x)
        for rows, update, strength in self.updates:
            update.add_to(found[rows], x[rows], strength)
        return found

    def product(self, x: Tensor) -> Tensor:
        """The output without updates."""
        return functional.linear(x, self.weight, self.bias)


class UpdatedConv2d(nn.Conv2d):
    """Like `UpdatedLinear`, for a convolution that pads with zeros and has one group."""

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
            # `down` has the kernel of the layer. `up` is a 1 x 1 convolution, which is a matrix
            # product.
            low = self._convolved(x[rows], update.down, None).flatten(2)
            planes = found[rows].view(len(low), self.out_channels, -1)
            planes.baddbmm_(update.up.expand(len(low), -1, -1), low, alpha=strength)
        return found

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation)


class RowUpdates:
    """The updates of a network's layers, only for the thread that calls the network.

    A deep copy of the network has `RowUpdates` of its own.
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
        """Within this context, a call of the network adds `adapters` to its rows.

        `adapters[i]` apply to the next `sizes[i]` rows. Equal adapters that follow one another are
        added in one product. In some layers, a row spans several entries of the first axis.
        `joined` has the number of entries of each row, by the name of the layer.
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
    """Within this context, the network adds the adapters of each row; see `RowUpdates.of`."""
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
    """Replace the layers of a network with layers that can be updated by row.

    The network gets a `RowUpdates` as its attribute `row_updates`.
    """
    for name, layer in list(network.named_modules()):
        if type(layer) is nn.Linear:
            network.set_submodule(name, UpdatedLinear(layer))
        elif type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            network.set_submodule(name, UpdatedConv2d(layer))
    network.row_updates = RowUpdates(network)
