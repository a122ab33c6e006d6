"""Records the current activity of the device thread, its current runs and the use of models.

A watchdog reads the activity to see whether the device thread makes progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias


class ActivityKind(StrEnum):
    IDLE = "idle"
    """No run needs the device thread."""
    NODE = "node"
    """The device thread runs the body of a node."""
    CALL = "call"
    LOAD = "load"
    """The device thread loads a model, or makes the first call of a kind and size. Such a first
    call may compile kernels."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Activity:
    """The current activity of the device thread.

    `count` grows with every call, with every load, and with every node that starts or ends.
    """

    count: int
    kind: ActivityKind
    since: float = field(default_factory=time.monotonic, compare=False)
    """The time at which the activity began, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The models that an engine has loaded since it started, and the memory that they take now.

    Merged LoRAs, upscalers and everything else in the model cache count as models.
    """

    loaded: int = 0
    loaded_bytes: int = 0
    """The size of all loads. A tensor that several models share counts once for each model."""
    evicted: int = 0
    evicted_bytes: int = 0
    hits: int = 0
    """The number of requests for a model that was in memory."""
    held_bytes: int = 0
    """The size of all models in memory now. A tensor that several models share counts once."""


OnActive: TypeAlias = Callable[[bool], None]
"""A function that is called with True before the device thread works for a run, and with False
before the device thread works for other runs.
"""


def ignore_active(_: bool) -> None:
    """A callback that does nothing, for runs without a callback."""


class ActivityMonitor:
    """The current activity of the device thread.

    Only the device thread calls the methods. Any thread may read `now`.
    """

    def __init__(self) -> None:
        self.now = Activity(0, ActivityKind.IDLE)
        self._active: frozenset[OnActive] = frozenset()

    def begin(self, kind: ActivityKind, runs: Iterable[OnActive]) -> None:
        """Note that the device thread begins to work for these runs and for no other runs."""
        active = frozenset(runs)
        if active != self._active:
            for on_active in self._active - active:
                on_active(False)
            for on_active in active - self._active:
                on_active(True)
            self._active = active
        self.now = Activity(self.now.count + 1, kind)

    def move(self) -> None:
        """Note that a node starts or ends."""
        self.now = Activity(self.now.count + 1, self.now.kind)

    def rest(self) -> None:
        """Note that no run needs the device thread now."""
        self.begin(ActivityKind.IDLE, ())

    def end(self) -> None:
        """Note that the device thread has ended. No `OnActive` function is called."""
        self.now = Activity(self.now.count + 1, ActivityKind.ENDED)
