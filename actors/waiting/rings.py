"""Rings: owners by the turn in which they are served, in order, found without a search."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Rings(Generic[T]):
    """A look at the first of them costs what it finds, and the logarithm of how many turns there
    are for each turn that it goes through: not the number of turns, or of members.
    """

    def __init__(self) -> None:
        self._rings: dict[int, OrderedDict[T, None]] = {}
        self._heap: list[int] = []
        """The turns that have a ring, which may be empty."""
        self._turns: dict[T, int] = {}
        """By member."""

    def __contains__(self, member: T) -> bool:
        return member in self._turns

    def add(self, member: T, turn: int) -> None:
        """As the last one of this turn. It is in none yet."""
        ring = self._rings.get(turn)
        if ring is None:
            ring = self._rings[turn] = OrderedDict()
            heapq.heappush(self._heap, turn)
        ring[member] = None
        self._turns[member] = turn

    def remove(self, member: T) -> int | None:
        """The turn that it was in; None if it was in none."""
        if (turn := self._turns.pop(member, None)) is not None:
            del self._rings[turn][member]
        return turn

    def make_first(self, member: T) -> None:
        """Of its turn."""
        self._rings[self._turns[member]].move_to_end(member, last=False)

    @property
    def turn(self) -> int | None:
        """The first that somebody is in."""
        while self._heap and not self._rings[self._heap[0]]:
            del self._rings[heapq.heappop(self._heap)]
        return self._heap[0] if self._heap else None

    def first(self, most: int) -> list[tuple[int, T]]:
        """The first `most` members, each with its turn."""
        found: list[tuple[int, T]] = []
        passed: list[int] = []
        while len(found) < most and (turn := self.turn) is not None:
            found += [(turn, each) for each in islice(self._rings[turn], most - len(found))]
            if len(found) < most:
                passed.append(heapq.heappop(self._heap))
        for turn in passed:
            heapq.heappush(self._heap, turn)
        return found
