"""LoRAs that are not merged: what they add to the outputs of layers."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.loading.store import Identity


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The matrices of one layer. What they add to its output is `up @ (down @ x)`."""

    down: Tensor
    """(rank, in) of a linear layer, (rank, in, height, width) of a convolution."""
    up: Tensor
    """(out, rank), with alpha / rank in it."""

    @property
    def size(self) -> int:
        """How many numbers they have."""
        return self.down.numel() + self.up.numel()

    def add_to(self, output: Tensor, x: Tensor, strength: float) -> None:
        """Add to the output (…, out) of a linear layer what `strength` times these make of x."""
        low = functional.linear(x, self.down).flatten(0, -2)
        output.view(-1, output.shape[-1]).addmm_(low, self.up.T, alpha=strength)

    def dense(self) -> Tensor:
        """What they add to the weight in float32, (out, in) with the kernel in it."""
        return self.up.float() @ self.down.float().flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class Kronecker:
    """The factors of one linear layer, whose output changes by kron(first, second) @ x."""

    first: Tensor
    second: Tensor

    @property
    def size(self) -> int:
        """How many numbers they have."""
        return self.first.numel() + self.second.numel()

    def add_to(self, output: Tensor, x: Tensor, strength: float) -> None:
        """As of `LowRank`."""
        blocks = x.unflatten(-1, (self.first.shape[1], self.second.shape[1]))
        found = self.first @ functional.linear(blocks, self.second)
        output.add_(found.flatten(-2), alpha=strength)

    def dense(self) -> Tensor:
        """As of `LowRank`."""
        return torch.kron(self.first.float(), self.second.float())


Update: TypeAlias = LowRank | Kronecker


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """The file of a LoRA in memory, as far as it changes the network that denoises. All strengths
    share it.
    """

    path: Path
    identity: Identity
    layers: Mapping[str, tuple[Update, ...]]
    """By the names of the network's layers."""

    @property
    def size(self) -> int:
        """How many numbers its matrices have."""
        return sum(each.size for updates in self.layers.values() for each in updates)


@dataclass(frozen=True, slots=True)
class AppliedAdapter:
    """An adapter and its strength."""

    adapter: Adapter
    strength: float


Adapters: TypeAlias = tuple[AppliedAdapter, ...]
"""Those of one model, all of which apply to each of its rows."""


def key_of(adapters: Adapters) -> Hashable:
    """Equal for the same adapters at the same strengths; it does not keep them in memory."""
    return tuple((weakref.ref(each.adapter), each.strength) for each in adapters)
