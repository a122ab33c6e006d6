"""The log lines of refused keys: so many a second, and then how many more there were."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

logger = logging.getLogger(__name__)

_ACTION = "refuse_key"


class RefusalLog:
    """A flood of keys that open nothing fills no disk.

    The first refusals of each period are logged one by one. The others are counted, and the count
    is logged when the period is over.
    """

    def __init__(self, *, lines_per_s: int, period_s: float = 1.0) -> None:
        """`lines_per_s`: 0 is any number."""
        self._most = lines_per_s * period_s
        self._period_s = period_s
        self._logged = 0
        self._left_out = 0
        self._period: asyncio.TimerHandle | None = None

    def note(self, fields: Mapping[str, object]) -> None:
        """Log one refusal, or count it. Needs a running event loop."""
        if self._period is None:
            loop = asyncio.get_running_loop()
            self._period = loop.call_later(self._period_s, self._end_period)
        if self._most and self._logged >= self._most:
            self._left_out += 1
            return
        self._logged += 1
        logger.warning("key refused", extra={"action": _ACTION, **fields})

    def stop(self) -> None:
        """Log at once how many were left out."""
        if self._period is not None:
            self._period.cancel()
            self._end_period()

    def _end_period(self) -> None:
        if self._left_out:
            fields = {"action": _ACTION, "count": self._left_out}
            logger.warning("more keys refused", extra=fields)
        self._period = None
        self._logged = self._left_out = 0
