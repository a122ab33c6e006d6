"""RefusalLog: logs refused keys, with a limit of lines per second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from settings.constant import constant

logger = logging.getLogger(__name__)

_ACTION = "refuse_key"
_LINES_PER_S = constant("KEY_REFUSAL_LINES_PER_S", 10)
"""The most refused keys per second that one replica logs with one line each."""


class RefusalLog:
    """Logs refused keys, and limits the log lines so that many refusals do not fill the disk.

    The first refusals of each period are logged one by one. Later refusals are only counted, and
    the count is logged when the period is over.
    """

    def __init__(self, *, lines_per_s: int | None = None, period_s: float = 1.0) -> None:
        """A `lines_per_s` of 0 means no limit."""
        self._most = (_LINES_PER_S if lines_per_s is None else lines_per_s) * period_s
        self._period_s = period_s
        self._logged = 0
        self._left_out = 0
        self._period: asyncio.TimerHandle | None = None

    def note(self, fields: Mapping[str, object]) -> None:
        """Log or count one refusal. Needs a running event loop."""
        if self._period is None:
            loop = asyncio.get_running_loop()
            self._period = loop.call_later(self._period_s, self._end_period)
        if self._most and self._logged >= self._most:
            self._left_out += 1
            return
        self._logged += 1
        logger.warning("key refused", extra={"action": _ACTION, **fields})

    def stop(self) -> None:
        """End the period now, and log the count of refusals that were not logged."""
        if self._period is not None:
            self._period.cancel()
            self._end_period()

    def _end_period(self) -> None:
        if self._left_out:
            fields = {"action": _ACTION, "count": self._left_out}
            logger.warning("more keys refused", extra=fields)
        self._period = None
        self._logged = self._left_out = 0
