"""Pace: how many jobs of an endpoint have ended lately."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW_S = 60


class Pace:
    """Counts by the second, so that its size does not follow the number of jobs."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._ends: deque[tuple[int, int]] = deque(maxlen=_WINDOW_S + 1)
        """Seconds in which jobs ended, and how many in each."""

    def note_end(self) -> None:
        second, ends = int(self._clock()), 0
        if self._ends and self._ends[-1][0] == second:
            _, ends = self._ends.pop()
        self._ends.append((second, ends + 1))

    def per_s(self) -> float | None:
        """Jobs a second over the last minute; None while none has ended in it."""
        now = self._clock()
        ends = sum(count for second, count in self._ends if second > now - _WINDOW_S)
        return ends / min(max(now - self._since, 1.0), _WINDOW_S) if ends else None
