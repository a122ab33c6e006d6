"""Decides which runs may use the device at the same time, by the memory that they need."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

JOB_MEMORY_BYTES = 2 * 2**30
"""The largest estimated size of the images, latents and texts of all jobs on the device together.
A job that does not fit waits. The memory of models and of their calls is not counted.
"""
_MOST_OVERTAKES = 8


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The memory use of an engine in bytes. The needs of runs are estimates."""

    models_bytes: int
    running_bytes: int
    """The needs of the runs on the device."""
    waiting_bytes: int
    """The needs of the runs in the queue."""
    budget_bytes: int
    """The largest memory that the runs on the device may need together; 0 means no limit."""


@dataclass(slots=True)
class _Place(Generic[T]):
    """A run in the queue, or on the device."""

    run: T
    need_bytes: int
    is_exclusive: bool
    overtakes: int = 0
    """The number of runs that have overtaken this run in the queue."""
    started_at: float = 0.0
    """The time at which the run started on the device, by the monotonic clock."""


class Admission(Generic[T]):
    """Admits runs in order of arrival, as long as their needs fit into `budget_bytes`.

    If nothing runs, any run may start. 0 means no limit.

    A run that fits may overtake a run that does not fit. Each run is overtaken at most
    `_MOST_OVERTAKES` times, so that a large run does not wait without end. An exclusive run is
    never overtaken, and starts when no other run is left. No other run starts until the exclusive
    run has ended or `exclusive_s` has passed.
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
        """Return the memory that models take and the memory that the runs need."""
        return EngineMemory(
            models_bytes=models_bytes,
            running_bytes=sum(place.need_bytes for place in self._running),
            waiting_bytes=sum(place.need_bytes for place in self._waiting),
            budget_bytes=self._budget_bytes,
        )

    def enter(self, run: T, need_bytes: int, *, is_exclusive: bool = False) -> None:
        """Add a run to the end of the queue."""
        self._waiting.append(_Place(run, need_bytes, is_exclusive))

    def leave(self, run: T) -> None:
        """Remove a run that has ended, or that no longer waits."""
        self._waiting = [place for place in self._waiting if place.run != run]
        self._running = [place for place in self._running if place.run != run]

    @property
    def joined(self) -> list[T]:
        """The exclusive runs that now share the device with other runs."""
        if len(self._running) < 2:
            return []
        return [place.run for place in self._running if place.is_exclusive]

    @property
    def has_exclusive(self) -> bool:
        """Whether an exclusive run is on the device or in the queue."""
        return any(place.is_exclusive for place in (*self._running, *self._waiting))

    def admit(self) -> T | None:
        """Return the next run that may start, or None. The run counts as running from now on."""
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
