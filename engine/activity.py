"""The current activity of the device thread, and the use of models.

A watchdog reads the activity to detect a device thread that makes no progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias


class ActivityKind(StrEnum):
    IDLE = "idle"
    NODE = "node"
    CALL = "call"
    LOAD = "load"
    """The device thread loads a model, or makes a call of a new kind, which may compile kernels."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Activity:
    """The current activity of the device thread.

    `count` grows with every change, also between two activities of the same kind.
    """

    count: int
    kind: ActivityKind
    since: float = field(default_factory=time.monotonic, compare=False)
    """The start of the activity, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The use of models since the engine started.

    Everything in the model cache counts as a model, also merged LoRAs and upscalers.
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
"""A callback of a run. The argument is True before the device thread works for the run, and False
before the device thread works for other runs or becomes idle.
"""


def ignore_active(_: bool) -> None:
    """The default of `on_active`: does nothing."""


class ActivityMonitor:
    """Records the current activity in `now`, which any thread may read.

    Only the device thread calls the methods.
    """

    def __init__(self) -> None:
        self.now = Activity(0, ActivityKind.IDLE)
        self._active: frozenset[OnActive] = frozenset()

    def begin(self, kind: ActivityKind, runs: Iterable[OnActive]) -> None:
        """Record a new activity, and call the callbacks of runs that become active or inactive."""
        active = frozenset(runs)
        if active != self._active:
            for on_active in self._active - active:
                on_active(False)
            for on_active in active - self._active:
                on_active(True)
            self._active = active
        self.now = Activity(self.now.count + 1, kind)

    def move(self) -> None:
        """Record progress within the current activity: a node starts or ends."""
        self.now = Activity(self.now.count + 1, self.now.kind)

    def rest(self) -> None:
        self.begin(ActivityKind.IDLE, ())

    def end(self) -> None:
        """Record that the device thread has ended. No callback is called."""
        self.now = Activity(self.now.count + 1, ActivityKind.ENDED)
