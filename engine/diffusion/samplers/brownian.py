"""A Brownian path over sigma, as a virtual tree (Li et al. 2020, arXiv:2001.01328, section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

DIGITS = 6
"""The decimal places of the ends of intervals."""
_POOL_SIZE = 24


class _Interval(NamedTuple):
    start: float
    end: float
    depth: int = 0
    number: int = 0

    @property
    def middle(self) -> float:
        return round(0.5 * (self.end + self.start), DIGITS)

    def halves(self) -> tuple[_Interval, _Interval]:
        depth, number = self.depth + 1, 2 * self.number
        return (
            _Interval(self.start, self.middle, depth, number),
            _Interval(self.middle, self.end, depth, number + 1),
        )


class BrownianPath:
    """A path that depends only on its seed, its ends and `normal`.

    `normal` returns the normal numbers of a seed. The seeds are those of `torchsde.BrownianTree`
    with the entropy `seed`, so the path is the same. All ends have at most `DIGITS` decimal places.
    """

    def __init__(
        self, start: float, end: float, seed: int, normal: Callable[[int], Tensor]
    ) -> None:
        self._seed = seed
        self._normal = normal
        self._whole = _Interval(start, end)
        self._change = self._drawn() * math.sqrt(end - start)
        self._known: dict[_Interval, Tensor] = {}
        """The changes in the left halves of the intervals that the last call has split."""

    def change(self, low: float, high: float) -> Tensor:
        """Return the value at `high` minus the value at `low`."""
        if low == high:
            return torch.zeros_like(self._change)
        known, self._known = self._known, {}
        found, *more = self._parts(self._whole, low, high, change=self._change, known=known)
        for part in more:
            found = found + part
        return found

    def _parts(
        self,
        interval: _Interval,
        low: float,
        high: float,
        *,
        change: Tensor,
        known: dict[_Interval, Tensor],
    ) -> Iterator[Tensor]:
        """Return the changes in the intervals that make up the part between `low` and `high`.

        `change` is that in the whole interval, and `known` are the changes of earlier calls.
        """
        if (low, high) == (interval.start, interval.end):
            yield change
            return
        left, right = interval.halves()
        left_change = known[interval] if interval in known else self._left_change(interval, change)
        self._known[interval] = left_change
        for half, of_half in ((left, left_change), (right, change - left_change)):
            if low < half.end and high > half.start:
                ends = max(low, half.start), min(high, half.end)
                yield from self._parts(half, *ends, change=of_half, known=known)

    def _left_change(self, interval: _Interval, change: Tensor) -> Tensor:
        left, right = interval.middle - interval.start, interval.end - interval.middle
        per_length = 1 / (interval.end - interval.start)
        noise = self._drawn(interval.number, interval.depth)
        return left * change * per_length + math.sqrt(left * right * per_length) * noise

    def _drawn(self, *key: int) -> Tensor:
        sequence = np.random.SeedSequence(self._seed, spawn_key=key, pool_size=_POOL_SIZE)
        return self._normal(int(sequence.generate_state(1)[0]))
