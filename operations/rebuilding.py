"""Rebuilds the read model from the log and the history objects, while the service runs.

The log is read first, then the history objects, then the events that were appended during the
rebuild. The objects are listed after the log, so the list has the object of each job that leaves
the log before the rebuild reads it. A job that is younger than the rebuild may be an exception. For
such a job, the swap copies the row that the projection has written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from events.cloud_events import MalformedEvent, decode, decode_all
from events.errors import HistoryBroken
from events.history import StoredHistory, read_history
from events.log import EventLog, StoredEvent
from events.store.table_rebuild import HistoryState, Rebuild
from events.types import Erased, Event
from operations.stores import Stores, gather_lists, stored_in_logs
from storage.file_names import HistoryName, history_name
from storage.images import ImageNotFound

_BATCH = 250
_AT_ONCE = 32
_MOST_SWAPS = 100


class RebuildNotDone(Exception):
    """The rebuild was not completed. The old read model remains in use."""


@dataclass(slots=True)
class Rebuilt:
    """Counts of the jobs that a rebuild has read so far."""

    from_log: int = 0
    """Jobs read from the log. A job that changes during the rebuild is read and counted again."""
    from_histories: int = 0
    unreadable: int = 0
    """Damaged history objects. Their jobs get no database row."""


class Rebuilding:
    def __init__(
        self, stores: Stores, tables: Rebuild, *, on_batch: Callable[[], Awaitable[None]]
    ) -> None:
        """`on_batch` is called after every batch of jobs."""
        self._stores = stores
        self._tables = tables
        self._on_batch = on_batch
        self._older: list[tuple[EventLog, str, int]] = []
        """Log, job id and last sequence of old events: the job's history object has more events.
        They come from a backup of the log.
        """
        self.rebuilt = Rebuilt()

    async def run(self) -> None:
        """Rebuild the read model. Raises RebuildNotDone and the errors of the stores."""
        begin = await self._stores.log.last_sequence()
        await self._tables.begin()
        async for page in self._stores.log.job_ids():
            for start in range(0, len(page), _BATCH):
                await self._read_log(page[start : start + _BATCH])
        async for files in self._stores.images.files():
            names = [name for file in files if (name := history_name(file.key)) is not None]
            for start in range(0, len(names), _BATCH):
                await self._read_histories(names[start : start + _BATCH])
        await self._swap(begin)
        # The old events are purged, because their jobs have ended and must not run again.
        for log, job_id, upto in self._older:
            await log.purge(job_id, upto=upto)
        # The jobs in `surplus` were removed after they were read.
        async for job_ids in self._tables.surplus():
            stored = await self._stores.log.read_raw(job_ids)
            await self._tables.remove([each for each in job_ids if each not in stored])
        await self._tables.finish()

    async def _swap(self, begin: int) -> None:
        offset = begin
        for _ in range(_MOST_SWAPS):
            end = await self._stores.log.last_sequence()
            # `_follow` returns an offset below `end` if the last events have left the log.
            offset = max(await self._follow(offset), end)
            log_end = await self._stores.log.last_sequence()
            if await self._tables.swap(offset, since=begin, log_end=log_end):
                return
        raise RebuildNotDone(
            "During the rebuild, the log grew faster than it was read. Try again later."
        )

    async def _follow(self, offset: int) -> int:
        """Read the jobs that have events after `offset`. Return the offset of the last event."""
        while stored := await self._stores.log.following(offset):
            await self._read_log({job_id for each in stored if (job_id := _job_id(each))})
            offset = stored[-1].sequence
        return offset

    async def _read_log(self, job_ids: Collection[str]) -> None:
        stored = await self._stores.log.read_raw(job_ids)
        await self._tables.put(_events(stored))
        self.rebuilt.from_log += len(stored)
        await self._on_batch()

    async def _read_histories(self, names: Sequence[HistoryName]) -> None:
        """Read the longest history of each job.

        A job has several histories if a historian died before it removed the shorter histories.
        """
        keys = await self._tables.histories([name.job_id for name in names])
        newest = {job_id: name for job_id, key in keys.items() if (name := history_name(key))}
        for name in names:
            known = newest.get(name.job_id)
            if known is None or _length(known) < _length(name):
                newest[name.job_id] = name
        read = [name for job_id, name in newest.items() if name.key != keys.get(job_id)]
        histories: dict[str, StoredHistory] = {}
        for start in range(0, len(read), _AT_ONCE):
            some = await gather_lists(self._read(name) for name in read[start : start + _AT_ONCE])
            newest |= {name.job_id: name for name, _ in some}
            histories |= {history.job_id: history for _, history in some}
        in_logs = await stored_in_logs(self._stores, histories)
        found: dict[str, HistoryState] = {}
        events: dict[str, Sequence[StoredEvent]] = {}
        for job_id, history in histories.items():
            in_log = self._without_older(history, in_logs.get(job_id, StoredHistory(job_id)))
            events[job_id] = history.joined(in_log).events
            found[job_id] = HistoryState(
                newest[job_id].key,
                has_events_in_log=bool(in_log.events),
                is_hot=bool(in_log.events or in_log.deliveries),
            )
        await self._tables.put(_events(events), histories=found)
        self.rebuilt.from_histories += len(histories)
        await self._on_batch()

    async def _read(self, name: HistoryName) -> list[tuple[HistoryName, StoredHistory]]:
        """Read a history, or the longer history that has replaced it."""
        try:
            history = await read_history(self._stores.images, name.key)
        except HistoryBroken:
            self.rebuilt.unreadable += 1
            return []
        except ImageNotFound:
            longest = await self._longest(name.job_id)
            if longest is None or longest == name:
                return []  # The job has been removed.
            return await self._read(longest)
        return [(name, history)] if history.job_id == name.job_id else []

    async def _longest(self, job_id: str) -> HistoryName | None:
        names = [
            name
            async for files in self._stores.images.files(job_id)
            for file in files
            if (name := history_name(file.key)) is not None
        ]
        return max(names, key=_length, default=None)

    def _without_older(self, history: StoredHistory, in_log: StoredHistory) -> StoredHistory:
        """Return `in_log` without old events. Add the old events to `_older`."""
        stores, events, deliveries = self._stores, in_log.events, in_log.deliveries
        if _is_older(events, history.events) or _is_before_erasure(events, history):
            self._older.append((stores.event_log, history.job_id, events[-1].sequence))
            events = ()
        if _is_older(deliveries, history.deliveries):
            self._older.append((stores.delivery_log, history.job_id, deliveries[-1].sequence))
            deliveries = ()
        return StoredHistory(history.job_id, events, deliveries)


def _length(name: HistoryName) -> tuple[int, int]:
    return name.version, name.deliveries


def _is_older(stored: Sequence[StoredEvent], kept: Sequence[StoredEvent]) -> bool:
    """Return whether a log has only the beginning of a history."""
    begin = [event.payload for event in kept[: len(stored)]]
    return 0 < len(stored) < len(kept) and [event.payload for event in stored] == begin


def _is_before_erasure(stored: Sequence[StoredEvent], history: StoredHistory) -> bool:
    """Return whether the job was erased after these events. Its history then has only `Erased`."""
    events = decode_all(history.events, job_id=history.job_id)
    if not stored or not events or not isinstance(events[-1].data, Erased):
        return False
    return history.events[-1].payload not in {event.payload for event in stored}


def _events(stored: Mapping[str, Sequence[StoredEvent]]) -> list[Event]:
    return [
        event
        for job_id, messages in stored.items()
        for event in decode_all(messages, job_id=job_id)
    ]


def _job_id(message: StoredEvent) -> str | None:
    try:
        return decode(message.payload).job_id
    except MalformedEvent:
        return None
