"""May an ended job leave the log? Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from events.archive.segment import ArchivedJob
from events.delivery import fold_delivery, is_wanted
from events.job import is_readable
from events.store.archiving.hot_jobs import HotJob
from events.types import Erased, Event, Submitted
from events.wire.cloud_events import decode_all


@dataclass(frozen=True, slots=True)
class Archivable:
    archived: ArchivedJob
    """What the archive is to have of it."""


@dataclass(frozen=True, slots=True)
class HotUntil:
    """It needs the log still."""

    since: datetime
    """Look again once the hot time has passed since then."""


def judge(
    job: HotJob, stored: ArchivedJob, *, now: datetime, hot_time: timedelta
) -> Archivable | HotUntil:
    """`stored`: all that log and archive have of it.

    It may leave once its row is that of its last event and its delivery has ended for so long. Of
    an erased job only the event that says so is kept.
    """
    events = decode_all(stored.events, job_id=job.id)
    if not events or events[-1].version != job.version:
        return HotUntil(now)
    if isinstance(events[-1].data, Erased):
        return Archivable(replace(stored, events=stored.events[-1:], deliveries=()))
    deliveries = decode_all(stored.deliveries, job_id=job.id)
    if not _is_whole(events) or not _is_whole(deliveries):
        return HotUntil(now)
    first = events[0].data
    if isinstance(first, Submitted) and is_wanted(first):
        if not fold_delivery(deliveries).ended:
            return HotUntil(now)
        if (ended_at := deliveries[-1].time) > now - hot_time:
            return HotUntil(ended_at)
    return Archivable(stored)


def _is_whole(events: list[Event]) -> bool:
    """Whether none is missing, and each can be read."""
    versions = [event.version for event in events if is_readable(event)]
    return versions == list(range(1, len(events) + 1))
