"""A circuit breaker of one receiver: while the receiver keeps failing, nothing is sent to it.

Closed, every callback is tried. After some failures in a row it opens, and none is tried until its
time is over; then a single one is, as a probe. A probe that fails opens it for twice as long, up
to a limit; any answer closes it (M. Nygard, Release It!, "Circuit Breaker").

It lives in memory: after a restart, and in each instance, it has to be learned again whether a
receiver fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from settings.callbacks import CallbackSettings


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    failures: int
    """Failures in a row after which it opens."""
    open_s: float
    """How long it is open the first time."""
    longest_open_s: float
    jitter: float
    """Each time is made longer or shorter by up to this fraction."""

    @classmethod
    def of(cls, settings: CallbackSettings) -> BreakerLimits:
        return cls(
            failures=settings.breaker_failures,
            open_s=settings.breaker_open_s,
            longest_open_s=settings.breaker_longest_s,
            jitter=settings.jitter,
        )


class Breaker:
    def __init__(self, limits: BreakerLimits, *, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._failures = 0
        self._period_s = 0.0
        """How long the present or latest opening lasts; 0 while closed."""
        self._open_until = 0.0
        self._probing = False

    @property
    def is_closed(self) -> bool:
        return self._period_s == 0

    def withheld_s(self) -> float:
        """0 if a try may be made now, else after how many seconds to come again.

        Waiting callbacks come back spread out, and a little after the breaker's time, so that few
        meet the probe.
        """
        if self.is_closed:
            return 0.0
        if self._probing:
            return random.uniform(0.5, 1) * self._period_s
        left_s = self._open_until - self._clock()
        if left_s <= 0:
            return 0.0
        return left_s + random.uniform(0, self._limits.jitter) * self._period_s

    def begin(self) -> bool:
        """Note that a try begins now; return whether it is the probe."""
        self._probing = not self.is_closed
        return self._probing

    def end(self, answered: bool | None, *, probe: bool) -> None:
        """`answered`: whether the receiver works; None if the try did not show it."""
        if probe:
            self._probing = False
        if answered:
            self._failures, self._period_s = 0, 0.0
        elif answered is False and self.is_closed:
            self._failures += 1
            if self._failures >= self._limits.failures:
                self._open(self._limits.open_s)
        elif answered is False and probe:
            self._open(min(2 * self._period_s, self._limits.longest_open_s))

    def _open(self, period_s: float) -> None:
        jitter = self._limits.jitter
        self._period_s = period_s
        self._open_until = self._clock() + period_s * random.uniform(1 - jitter, 1 + jitter)
