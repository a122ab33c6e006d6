"""LoRAs that are not merged: the low-rank matrices that they add to the layers of a UNet."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

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

    def joined(self, other: LowRank) -> LowRank:
        """What adds as much as both."""
        return LowRank(torch.cat([self.down, other.down]), torch.cat([self.up, other.up], dim=1))


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """The file of a LoRA in memory, as far as it changes a UNet. All strengths share it."""

    path: Path
    identity: Identity
    layers: Mapping[str, LowRank]
    """By the names of the UNet's layers."""

    @property
    def size(self) -> int:
        """How many numbers its matrices have."""
        return sum(each.size for each in self.layers.values())


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
