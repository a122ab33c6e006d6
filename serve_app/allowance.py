"""How often each caller may do what costs others something."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

_MINUTE_S = 60.0
_MOST_OWNERS = 10_000


class Allowance:
    """At most `per_minute` in any minute, by owner. Each HTTP process counts for itself."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._taken: dict[str, deque[float]] = {}
        """When each owner took one, within the last minute; the owner who took last, last."""

    def take(self, owner: str) -> int:
        """0 where it was granted, else the seconds until one will be."""
        now = self._clock()
        taken = self._taken.pop(owner, deque())
        self._taken[owner] = taken
        while taken and taken[0] <= now - _MINUTE_S:
            taken.popleft()
        if len(taken) >= self._per_minute:
            return math.ceil(taken[0] + _MINUTE_S - now)
        taken.append(now)
        if len(self._taken) > _MOST_OWNERS:
            del self._taken[next(iter(self._taken))]
        return 0
