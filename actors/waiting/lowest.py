"""Lowest: a set of numbers that knows its smallest one."""

from __future__ import annotations

import heapq


class Lowest:
    """A change costs the logarithm of its size, a look at the smallest nothing."""

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self._heap: list[int] = []
        """Each number once, and some that are not in the set any more."""
        self._heaped: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def add(self, number: int) -> None:
        self._numbers.add(number)
        if number not in self._heaped:
            self._heaped.add(number)
            heapq.heappush(self._heap, number)

    def discard(self, number: int) -> None:
        self._numbers.discard(number)

    @property
    def first(self) -> int | None:
        while self._heap and self._heap[0] not in self._numbers:
            self._heaped.discard(heapq.heappop(self._heap))
        return self._heap[0] if self._heap else None
