"""LoRAs that change the outputs of layers separately for each row, but not the weights."""

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
        return self.down.numel() + self.up.numel()

    def add_to(self, output: Tensor, x: Tensor, strength: float) -> None:
        """Add the update for the layer's input `x`, times `strength`, to `output` (…, out)."""
        low = functional.linear(x, self.down).flatten(0, -2)
        output.view(-1, output.shape[-1]).addmm_(low, self.up.T, alpha=strength)

    def dense(self) -> Tensor:
        """Return the change of the layer's weight as a float32 matrix (out, in * kernel size)."""
        return self.up.float() @ self.down.float().flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class Kronecker:
    """The two factors of one linear layer. They add `kron(first, second) @ x` to its output."""

    first: Tensor
    second: Tensor

    @property
    def size(self) -> int:
        return self.first.numel() + self.second.numel()

    def add_to(self, output: Tensor, x: Tensor, strength: float) -> None:
        blocks = x.unflatten(-1, (self.first.shape[1], self.second.shape[1]))
        found = self.first @ functional.linear(blocks, self.second)
        output.add_(found.flatten(-2), alpha=strength)

    def dense(self) -> Tensor:
        return torch.kron(self.first.float(), self.second.float())


Update: TypeAlias = LowRank | Kronecker


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """The updates of the denoising network from one LoRA file, for any strength of the LoRA."""

    path: Path
    identity: Identity
    layers: Mapping[str, tuple[Update, ...]]
    """The updates of each layer, by its name in the network."""

    @property
    def size(self) -> int:
        """The number of elements in all matrices of the adapter."""
        return sum(each.size for updates in self.layers.values() for each in updates)


@dataclass(frozen=True, slots=True)
class AppliedAdapter:
    adapter: Adapter
    strength: float


Adapters: TypeAlias = tuple[AppliedAdapter, ...]
"""The adapters of one model. Every row of the model uses all of these adapters."""


def key_of(adapters: Adapters) -> Hashable:
    """Return a key of the adapters and strengths that keeps no adapter in memory."""
    return tuple((weakref.ref(each.adapter), each.strength) for each in adapters)


M = TypeVar("M", bound=nn.Module)


class RowUpdate(NamedTuple):
    """An update that is added to some rows of a layer's output."""

    rows: slice
    update: Update
    strength: float


class UpdatedLinear(nn.Linear):
    """A linear layer that shares the parameters of `layer` and adds `updates` to its output.

    `updates` apply to the current call only. The first axis of the input has the rows.
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
        """Return the output without updates."""
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
            # `down` has the layer's kernel size. `up` is a 1 x 1 convolution: a matrix product.
            low = self._convolved(x[rows], update.down, None).flatten(2)
            planes = found[rows].view(len(low), self.out_channels, -1)
            planes.baddbmm_(update.up.expand(len(low), -1, -1), low, alpha=strength)
        return found

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.conv2d(x, weight, bias, self.stride, self.padding, self.dilation)


class RowUpdates:
    """The updates of a network's layers in the current call.

    Only the thread that calls the network may use this object. A deep copy of the network has
    `RowUpdates` of its own.
    """

    def __init__(self, network: nn.Module) -> None:
        self._by_layer = {
            name: layer.updates
            for name, layer in network.named_modules()
            if isinstance(layer, UpdatedLinear | UpdatedConv2d)
        }

    def can_update(self, layers: Iterable[str]) -> bool:
        """Return whether all of these layers can be updated by row."""
        return all(name in self._by_layer for name in layers)

    @contextmanager
    def applied(
        self,
        adapters: Sequence[Adapters],
        sizes: Sequence[int],
        joined: Mapping[str, Sequence[int]] | None = None,
    ) -> Iterator[None]:
        """Add `adapters` to the rows of every network call within this context.

        `adapters[i]` apply to `sizes[i]` rows, which follow the rows of `adapters[i - 1]`.
        Consecutive equal adapters share one product. In some layers, a row spans several entries of
        the first axis: `joined[name]` has the number of entries of each row in the layer `name`.
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
    """Add the adapters of each row within this context; see `RowUpdates.applied`."""
    if not any(adapters):
        return nullcontext()
    updates: RowUpdates = network.row_updates
    return updates.applied(adapters, sizes, joined)


def _row_slices(
    adapters: Sequence[Adapters], sizes: Sequence[int]
) -> Iterator[tuple[slice, Adapters]]:
    start = 0
    for own, same in groupby(zip(adapters, sizes, strict=True), key=itemgetter(0)):
        end = start + sum(size for _, size in same)
        yield slice(start, end), own
        start = end


def use_row_updates(network: Any) -> None:
    """Replace layers by layers that can be updated by row, and set `network.row_updates`."""
    for name, layer in list(network.named_modules()):
        if type(layer) is nn.Linear:
            network.set_submodule(name, UpdatedLinear(layer))
        elif type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros":
            network.set_submodule(name, UpdatedConv2d(layer))
    network.row_updates = RowUpdates(network)
