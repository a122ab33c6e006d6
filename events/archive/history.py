"""All that was stored of a job, wherever it is now: in the log, in the archive, or some in each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager

from events.archive.archive import Archive, SegmentRef
from events.archive.segment import ArchivedJob
from events.errors import HistoryGone
from events.log import (
    Appended,
    Conflict,
    EventLog,
    EventReader,
    StoredEvent,
    Subscription,
)
from events.streams.log_streams import LogPlace
from events.types import Erased, Event
from events.wire.cloud_events import decode_all
from storage.images import ImageNotFound

FindSegment = Callable[[str], Awaitable[SegmentRef | None]]
"""Which segment has events of a job; None where none has. Raises DatabaseUnavailable."""

_TRIES = 5
"""A segment may be rewritten between the look-up and the read; so often in a row it is not."""


class ArchivedJobs:
    """What the archive has of jobs."""

    def __init__(self, archive: Archive, find: FindSegment) -> None:
        self._archive = archive
        self._find = find

    async def has(self, job_id: str) -> bool:
        """Raises DatabaseUnavailable."""
        return await self._find(job_id) is not None

    async def get(self, job_id: str) -> ArchivedJob:
        """Empty where the archive has nothing of the job.

        Raises DatabaseUnavailable, ImageStoreUnavailable, ImageNotFound, SegmentBroken.
        """
        for last_try in (*[False] * (_TRIES - 1), True):
            ref = await self._find(job_id)
            if ref is None:
                break
            try:
                found = await self._archive.read(ref, job_id)
            except ImageNotFound:
                if last_try:
                    raise
                continue
            return found or ArchivedJob(job_id, ())
        return ArchivedJob(job_id, ())


class ArchivedLog:
    """An event log together with what the archive took from it."""

    def __init__(
        self,
        log: EventLog,
        archived: ArchivedJobs,
        events_of: Callable[[ArchivedJob], Iterable[StoredEvent]],
    ) -> None:
        """`events_of`: which of an archived job's events are this log's."""
        self._log = log
        self._archived = archived
        self._events_of = events_of

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        """As `EventLog.append`, also where the event at `expected` is in the archive by now.

        Raises what the log and the archive raise.
        """
        try:
            return await self._log.append(event, expected=expected)
        except HistoryGone:
            if not await self._archived.has(event.job_id):
                raise
        return await self._log.append(event, expected=0)

    async def read(self, job_id: str) -> list[Event]:
        """Raises what the log and the archive raise; the archive is asked only where it must be."""
        events = await self._log.read(job_id)
        if events and (events[0].version == 1 or isinstance(events[-1].data, Erased)):
            return events
        archived = self._events_of(await self._archived.get(job_id))
        older = decode_all(archived, job_id=job_id)
        first = events[0].version if events else None
        return [event for event in older if first is None or event.version < first] + events

    async def last(self, job_id: str) -> Event | None:
        return await self._log.last(job_id)

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._log.stored(job_ids)

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        await self._log.purge(job_id, keep=keep, upto=upto)

    def reader(self, *, after: LogPlace) -> AbstractAsyncContextManager[EventReader]:
        return self._log.reader(after=after)

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Subscription]:
        return self._log.watch(job_id)


class History:
    """Every event of a job and of its delivery, from log and archive."""

    def __init__(
        self, *, log: EventLog, deliveries: EventLog, archive: Archive, find: FindSegment
    ) -> None:
        archived = ArchivedJobs(archive, find)
        self.log = ArchivedLog(log, archived, lambda job: job.events)
        """The log of jobs, to write on as well."""
        self.delivery_log = ArchivedLog(deliveries, archived, lambda job: job.deliveries)
        """The log of deliveries, to write on as well."""

    async def read(self, job_id: str) -> list[Event]:
        """Every event of the job, oldest first; of an erased one only that.

        Empty if the job is unknown. Raises LogUnavailable, ReadTimeout, and where the log does not
        have all, DatabaseUnavailable, ImageStoreUnavailable, ImageNotFound, SegmentBroken.
        """
        return await self.log.read(job_id)

    async def deliveries(self, job_id: str) -> list[Event]:
        """Every event of the job's delivery, oldest first. Raises what `read` raises."""
        return await self.delivery_log.read(job_id)
