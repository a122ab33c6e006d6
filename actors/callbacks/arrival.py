"""An entry of the callback queue as it came, and what its clock says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from events.log import utc_now
from events.queue import CallbackEntry


@dataclass(frozen=True, slots=True)
class Arrival:
    """The queue's server decides by its own clock when what is parked comes back."""

    entry: CallbackEntry
    ahead: timedelta
    """How far the queue's clock is ahead of ours, as far as can be told: it was stored just now."""

    @classmethod
    def of(cls, entry: CallbackEntry) -> Arrival:
        return cls(entry, max(entry.stored_at - utc_now(), timedelta()))

    def is_early(self, time: datetime) -> bool:
        """Whether neither clock has come to `time`."""
        return time > max(utc_now(), self.entry.stored_at)
