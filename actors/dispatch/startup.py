"""Startup: whether the engine of a worker comes up in its place, and what keeps it from that."""

from __future__ import annotations

import time
from collections.abc import Callable

_MOST_CHARS = 300
_IN_CONSTRUCTOR = "creation task"
"""How Ray begins what it says of an actor that failed while it was made; the reason comes last."""


class Startup:
    """From the worker's place to the first answer of its engine, and again after each loss."""

    def __init__(
        self, *, longest_s: float, most_deaths: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """It has failed after `longest_s` without an answer, or `most_deaths` of the engine.

        The time until there is room for the worker is nobody's fault, and does not count.
        """
        self.is_placed = False
        self._longest_s = longest_s
        self._most_deaths = most_deaths
        self._clock = clock
        self._waits_since = clock()
        self._silent_since: float | None = None
        self._deaths = 0
        self._error: str | None = None

    @property
    def has_failed(self) -> bool:
        """Its place is better given to another worker."""
        since = self._silent_since
        is_late = since is not None and self._clock() - since > self._longest_s
        return self.is_placed and (is_late or self._deaths >= self._most_deaths)

    @property
    def trouble(self) -> str | None:
        """What it waits for, or what went wrong last, in a line; None once the engine answers."""
        if not self.is_placed:
            return "the cluster has no room for one"
        if self._silent_since is None:
            return None
        return self._error or "its engine has not answered yet"

    @property
    def waits_for_room_s(self) -> float:
        """How long the cluster has had no room for it now; 0 once it has its place."""
        return 0.0 if self.is_placed else self._clock() - self._waits_since

    def waits_for_room(self) -> None:
        self.is_placed = False
        self._waits_since = self._clock()

    def placed(self) -> None:
        now, since = self._clock(), self._silent_since
        self.is_placed = True
        self._silent_since = now if since is None else since + (now - self._waits_since)

    def died(self, error: Exception) -> None:
        """The engine has ended for good: another one has to be made."""
        self._deaths += 1
        self.silent(error)

    def silent(self, error: Exception) -> None:
        """The engine did not answer, or is being restarted."""
        if self._silent_since is None:
            self._silent_since = self._clock()
        self._error = _line(error)

    def answered(self) -> None:
        self._silent_since = self._error = None
        self._deaths = 0


class Pauses:
    """How long each place of a pool stays empty after a worker that did not come up in it."""

    def __init__(
        self, *, first_s: float, longest_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Each is twice as long as the one before, up to `longest_s`."""
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._pauses: dict[int, tuple[float, float]] = {}
        """By index: how long the last one was, and when it ends."""

    def begin(self, index: int) -> float:
        """How long the pause is."""
        last_s, _ = self._pauses.get(index, (self._first_s / 2, 0.0))
        pause_s = min(2 * last_s, self._longest_s)
        self._pauses[index] = (pause_s, self._clock() + pause_s)
        return pause_s

    def is_over(self, index: int) -> bool:
        return index not in self._pauses or self._clock() >= self._pauses[index][1]

    def forget(self, index: int) -> None:
        """A worker came up: the next pause is a first one."""
        self._pauses.pop(index, None)


def _line(error: Exception) -> str:
    """What an error says, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1 if _IN_CONSTRUCTOR in lines[0] else 0][:_MOST_CHARS]
