"""Watchdog: ends the engine process if its device thread hangs or has ended. Ray restarts the
process.
"""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.interface import Activity, ActivityKind

logger = logging.getLogger(__name__)

_STDERR = 2
_LAST_WORDS_S = 1.0
"""Seconds between the end of the device thread and the end of the process. During this time the
process reports the ends of its runs to the job actors.
"""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Limits for the duration of one activity of the device thread."""

    step_s: float
    """Limit in seconds for a device call or the body of a node."""
    load_s: float
    """Limit in seconds for a load of a model or the first device call of a kind and size."""

    def of(self, kind: ActivityKind) -> float:
        match kind:
            case ActivityKind.LOAD:
                return self.load_s
            case ActivityKind.ENDED:
                return 0.0
            case _:
                return self.step_s

    def seconds_left(self, activity: Activity) -> float:
        """Return the seconds until the limit. While the device thread is idle, no time is used."""
        limit_s = self.of(activity.kind)
        if activity.kind is ActivityKind.IDLE:
            return limit_s
        return max(0.0, activity.since + limit_s - time.monotonic())


def exit_later(timeout_s: float) -> None:
    """End the process after `timeout_s` seconds. A further call sets the timer again.

    The timer prints the stack of each thread first. It runs no Python code, so it also works during
    a call that never releases the interpreter lock.
    """
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=_STDERR)


class Watchdog:
    """Postpones the end of the process while the device thread is idle or makes progress.

    The limit applies to each activity of the device thread, and not to a job. So a slow node of one
    job does not shorten the time of another job.
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
        """Postpone the end of the process if the device thread is idle or has begun another
        activity since the last check.
        """
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
                logger.exception(
                    "the device thread is not watched any more", extra={"action": "watchdog"}
                )
            pause.wait(self._period_s)
