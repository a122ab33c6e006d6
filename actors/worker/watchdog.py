"""Watchdog: ends the engine's process once the device thread is stuck, or is no more.

Ray makes a new one.
"""

from __future__ import annotations

import faulthandler
import logging
import threading
from collections.abc import Callable

from engine.activity import Activity, ActivityKind, TimeLimits

logger = logging.getLogger(__name__)

_STDERR = 2
_LAST_WORDS_S = 1.0
"""How long the process of a device thread that has ended may tell the ends of its runs."""


def exit_later(timeout_s: float) -> None:
    """End the process in that time, unless this is called again before.

    A timer in C does it: it needs no Python, so it also ends a call that never gives the
    interpreter free. First it prints where each thread is.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=_STDERR)


class Watchdog:
    """Puts the end of the process off for as long as the device thread moves, or has nothing to do.

    It does not matter for whom the device works: a slow node of one job is no silence of another's.
    Where the thread has ended, the process ends, too.
    """

    def __init__(
        self,
        activity: Callable[[], Activity],
        limits: TimeLimits,
        *,
        exit_later: Callable[[float], None] = exit_later,
        period_s: float = 1.0,
    ) -> None:
        self._activity = activity
        self._limits = limits
        self._exit_later = exit_later
        self._period_s = min(period_s, limits.step_s / 4)
        self._last_count = -1

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def check(self) -> None:
        """Look at the device thread once."""
        activity = self._activity()
        if activity.kind is ActivityKind.IDLE or activity.count != self._last_count:
            self._exit_later(max(self._limits.of(activity.kind), _LAST_WORDS_S))
            self._last_count = activity.count

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self.check()
            except Exception:
                logger.exception("device thread is not watched", extra={"action": "watchdog"})
            pause.wait(self._period_s)
