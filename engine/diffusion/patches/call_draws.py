"""What layers of a UNet draw by chance in a call that rows of several jobs share.

Each job draws as it would alone: the layers are told which rows are whose.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor


class CallDraws:
    """What is drawn in one call of the model of one run."""

    def __init__(self, number: int, generator: torch.Generator) -> None:
        self.number = number
        """That of the call among those of the run."""
        self._generator = generator
        self._drawn: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def integers(self, layer: int, below: int, shape: tuple[int, ...]) -> Tensor:
        """Numbers of 0 and more, the same ones where a layer is called again in this call."""
        key = layer, shape
        if key not in self._drawn:
            self._drawn[key] = torch.randint(below, shape, generator=self._generator)
        return self._drawn[key]


class DrawnRows:
    """The rows of the call that a UNet is in. It belongs to the thread that calls the UNet."""

    def __init__(self) -> None:
        self.size = (0, 0)
        """Height and width of the latents."""
        self.parts: tuple[tuple[slice, CallDraws], ...] = ()
        """Which rows are of which run."""

    def tell(self, draws: Sequence[CallDraws], sizes: Sequence[int], x: Tensor) -> None:
        """Say what each of the `draws` is for: the next so many of the rows of `x`."""
        self.size = x.shape[2], x.shape[3]
        parts, start = [], 0
        for own, same in groupby(zip(draws, sizes, strict=True), key=itemgetter(0)):
            end = start + sum(size for _, size in same)
            parts.append((slice(start, end), own))
            start = end
        self.parts = tuple(parts)
