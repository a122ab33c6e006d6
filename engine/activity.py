"""What the device thread does now, and for which runs: whoever watches it sees whether it moves.

And what it has loaded.
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
    """It is in the body of a node."""
    CALL = "call"
    """It makes a device call."""
    LOAD = "load"
    """It loads a model, or makes the first call of a kind and size, for which kernels may be
    compiled."""
    ENDED = "ended"
    """It has ended, and nothing more is done."""


@dataclass(frozen=True, slots=True)
class Activity:
    """`count` moves with every call, every load, and every node that starts or ends."""

    count: int
    kind: ActivityKind
    since: float = field(default_factory=time.monotonic, compare=False)
    """When it began, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """The models of an engine since it started, and what they take now.

    LoRAs that were merged, upscalers and what else is kept in memory are models, too.
    """

    loaded: int = 0
    loaded_bytes: int = 0
    """A tensor that several share counts for each."""
    evicted: int = 0
    evicted_bytes: int = 0
    hits: int = 0
    """How often one was asked for that was in memory."""
    held_bytes: int = 0
    """In memory now. A tensor that several share counts once."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """How long the device thread may be at one thing."""

    step_s: float
    """At one device call, or in the body of a node."""
    load_s: float
    """At a load, or the first call of a kind."""

    def of(self, kind: ActivityKind) -> float:
        """0 where nothing more can come of it."""
        match kind:
            case ActivityKind.LOAD:
                return self.load_s
            case ActivityKind.ENDED:
                return 0.0
            case _:
                return self.step_s

    def seconds_left(self, activity: Activity) -> float:
        """How long the device thread may go on with it; idle it may be for ever."""
        limit_s = self.of(activity.kind)
        if activity.kind is ActivityKind.IDLE:
            return limit_s
        return max(0.0, activity.since + limit_s - time.monotonic())


OnActive: TypeAlias = Callable[[bool], None]
"""Told True before the device thread works for a run, and False before it works for others."""


def ignore_active(_: bool) -> None:
    """For a run that nobody watches."""


class ActivityMonitor:
    """The device thread writes it. Any thread may read `now`."""

    def __init__(self) -> None:
        self.now = Activity(0, ActivityKind.IDLE)
        self._active: frozenset[OnActive] = frozenset()

    def begin(self, kind: ActivityKind, runs: Iterable[OnActive]) -> None:
        """The device thread begins to work for these runs and no other."""
        active = frozenset(runs)
        if active != self._active:
            for on_active in self._active - active:
                on_active(False)
            for on_active in active - self._active:
                on_active(True)
            self._active = active
        self.now = Activity(self.now.count + 1, kind)

    def move(self) -> None:
        """Something was done, and the next of its kind begins."""
        self.now = Activity(self.now.count + 1, self.now.kind)

    def rest(self) -> None:
        """No run needs the device thread now."""
        self.begin(ActivityKind.IDLE, ())

    def end(self) -> None:
        """Nothing more is done. The runs that the device worked for last stay told so."""
        self.now = Activity(self.now.count + 1, ActivityKind.ENDED)
