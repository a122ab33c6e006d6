"""Decides which runs may use the device at the same time, by the memory that they need."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

JOB_MEMORY_BYTES = 2 * 2**30
"""The default budget for images, latents and texts of all jobs on the device, without models."""
_MOST_OVERTAKES = 8


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """The memory use of an engine in bytes. The needs of runs are estimates."""

    models_bytes: int
    running_bytes: int
    waiting_bytes: int
    budget_bytes: int
    """The most memory that the runs on the device may need together; 0 means no limit."""


@dataclass(slots=True)
class _RunState(Generic[T]):
    run: T
    need_bytes: int
    is_exclusive: bool
    overtakes: int = 0
    started_at: float = 0.0


class Admission(Generic[T]):
    """Admits runs in order of arrival, as long as the sum of their needs fits into `budget_bytes`.

    With a budget of 0, there is no limit. If no run is on the device, any run may start.

    A run that fits may overtake a run that does not fit. Each run is overtaken at most
    `_MOST_OVERTAKES` times, so that a large run does not wait without end. An exclusive run is
    never overtaken, and starts when no other run is on the device. No other run starts until the
    exclusive run has ended or `exclusive_s` has passed.
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
        self._waiting: list[_RunState[T]] = []
        self._running: list[_RunState[T]] = []

    def memory(self, models_bytes: int) -> EngineMemory:
        return EngineMemory(
            models_bytes=models_bytes,
            running_bytes=sum(state.need_bytes for state in self._running),
            waiting_bytes=sum(state.need_bytes for state in self._waiting),
            budget_bytes=self._budget_bytes,
        )

    def enter(self, run: T, need_bytes: int, *, is_exclusive: bool = False) -> None:
        self._waiting.append(_RunState(run, need_bytes, is_exclusive))

    def leave(self, run: T) -> None:
        self._waiting = [state for state in self._waiting if state.run != run]
        self._running = [state for state in self._running if state.run != run]

    @property
    def joined(self) -> list[T]:
        """The exclusive runs that now share the device with other runs."""
        if len(self._running) < 2:
            return []
        return [state.run for state in self._running if state.is_exclusive]

    @property
    def has_exclusive(self) -> bool:
        return any(state.is_exclusive for state in (*self._running, *self._waiting))

    def admit(self) -> T | None:
        """Return the next run that may start, or None. From now on, the run counts as running."""
        passed: list[_RunState[T]] = []
        for state in self._waiting:
            if self._fits(state):
                for other in passed:
                    other.overtakes += 1
                self._waiting.remove(state)
                state.started_at = self._now()
                self._running.append(state)
                return state.run
            if state.is_exclusive or state.overtakes >= _MOST_OVERTAKES:
                return None
            passed.append(state)
        return None

    def _is_left_alone(self, state: _RunState[T]) -> bool:
        return state.is_exclusive and self._now() < state.started_at + self._exclusive_s

    def _fits(self, state: _RunState[T]) -> bool:
        if not self._running:
            return True
        if state.is_exclusive or any(map(self._is_left_alone, self._running)):
            return False
        needed_bytes = sum(each.need_bytes for each in (*self._running, state))
        return not self._budget_bytes or needed_bytes <= self._budget_bytes
