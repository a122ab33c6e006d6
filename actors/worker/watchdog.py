"""Watchdog: ends the engine's process once the device thread is stuck. Ray makes a new one."""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable

from engine.activity import Activity, ActivityKind

_STDERR = 2


def exit_later(timeout_s: float) -> None:
    """End the process in that time, unless this is called again before.

    A timer in C does it: it needs no Python, so it also ends a call that never gives the
    interpreter free. First it prints where each thread is.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=_STDERR)


class Watchdog:
    """Puts the end of the process off for as long as the device thread moves, or has nothing to do.

    It does not matter for whom the device works: a slow node of one job is no silence of another's.
    """

    def __init__(
        self,
        activity: Callable[[], Activity],
        *,
        step_timeout_s: float,
        load_timeout_s: float,
        exit_later: Callable[[float], None] = exit_later,
        period_s: float = 1.0,
    ) -> None:
        self._activity = activity
        self._step_timeout_s = step_timeout_s
        self._load_timeout_s = load_timeout_s
        self._exit_later = exit_later
        self._period_s = min(period_s, step_timeout_s / 4)
        self._last_count = -1

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def check(self) -> None:
        """Look at the device thread once."""
        activity = self._activity()
        if activity.kind is ActivityKind.IDLE or activity.count != self._last_count:
            self._last_count = activity.count
            is_load = activity.kind is ActivityKind.LOAD
            self._exit_later(self._load_timeout_s if is_load else self._step_timeout_s)

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            self.check()
            pause.wait(self._period_s)
