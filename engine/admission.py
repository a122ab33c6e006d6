"""Which runs may be on the device: those whose needs of memory fit beside each other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_MOST_OVERTAKES = 8


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What an engine holds, and what waits for room. The needs of runs are estimates."""

    models_bytes: int
    running_bytes: int
    """The needs of the runs on the device."""
    waiting_bytes: int
    """The needs of the runs that wait for their turn."""
    budget_bytes: int
    """What the runs on the device may need together; 0 is any number."""


@dataclass(slots=True)
class _Place(Generic[T]):
    """A run in the queue, or on the device."""

    run: T
    need_bytes: int
    is_exclusive: bool
    overtakes: int = 0
    """How many runs have passed it in the queue."""
    started_at: float = 0.0
    """When it came on the device, by the monotonic clock."""


class Admission(Generic[T]):
    """First come, first served, within `budget_bytes`; where nothing runs, any run may start.

    A budget of 0 is none: then all may run beside each other.

    A run that fits beside those that run may pass one that does not. Each run is passed a limited
    number of times, so that a large one comes to its turn. An exclusive run is never passed: it
    starts when no other run is left, and keeps all others back until it has ended, for
    `exclusive_s` at most: then it is a run like the others.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        exclusive_s: float = math.inf,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._exclusive_s = exclusive_s
        self._now = now
        self._waiting: list[_Place[T]] = []
        self._running: list[_Place[T]] = []

    def memory(self, models_bytes: int) -> EngineMemory:
        """The needs of the runs, beside what models take."""
        return EngineMemory(
            models_bytes=models_bytes,
            running_bytes=sum(place.need_bytes for place in self._running),
            waiting_bytes=sum(place.need_bytes for place in self._waiting),
            budget_bytes=self._budget_bytes,
        )

    def enter(self, run: T, need_bytes: int, *, is_exclusive: bool = False) -> None:
        """Put a run at the end of the queue."""
        self._waiting.append(_Place(run, need_bytes, is_exclusive))

    def leave(self, run: T) -> None:
        """Forget a run that has ended, or that no longer waits."""
        self._waiting = [place for place in self._waiting if place.run != run]
        self._running = [place for place in self._running if place.run != run]

    @property
    def joined(self) -> list[T]:
        """The exclusive runs on the device that others are beside."""
        if len(self._running) < 2:
            return []
        return [place.run for place in self._running if place.is_exclusive]

    @property
    def has_exclusive(self) -> bool:
        """Whether an exclusive run is there, on the device or before it."""
        return any(place.is_exclusive for place in (*self._running, *self._waiting))

    def admit(self) -> T | None:
        """The next run that may start, or None. It counts as running from then on."""
        passed: list[_Place[T]] = []
        for place in self._waiting:
            if self._fits(place):
                for other in passed:
                    other.overtakes += 1
                self._waiting.remove(place)
                place.started_at = self._now()
                self._running.append(place)
                return place.run
            if place.is_exclusive or place.overtakes >= _MOST_OVERTAKES:
                return None
            passed.append(place)
        return None

    def _is_left_alone(self, place: _Place[T]) -> bool:
        return place.is_exclusive and self._now() < place.started_at + self._exclusive_s

    def _fits(self, place: _Place[T]) -> bool:
        if not self._running:
            return True
        if place.is_exclusive or any(map(self._is_left_alone, self._running)):
            return False
        needed_bytes = sum(each.need_bytes for each in (*self._running, place))
        return not self._budget_bytes or needed_bytes <= self._budget_bytes
