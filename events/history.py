"""The whole history of a job: its events in the log and its events in its history object.

When a job is over, the historian moves its events from the log to one object in the image store
(`actors.upkeep.historian`). A later event, for example a request for another delivery of the
callback, is stored in the log again.

The object is one gzip file (RFC 1952) with lines of JSON. The first line has the format and the id
of the job. Every other line has one event, in the order of its log, with the same bytes as in the
log:

    {"log":"jobs","sequence":12,"event":{"specversion":"1.0",…}}
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from events.cloud_events import decode_all
from events.errors import HistoryBroken, HistoryGone
from events.log import (
    Appended,
    Conflict,
    EventLog,
    EventReader,
    StoredEvent,
    Subscription,
)
from events.types import Erased, Event
from storage.file_names import history_name
from storage.images import ImageNotFound, ImageStore

FORMAT = "darkroom.history.v1"

_LEVEL = 6
_LINE = re.compile(rb'\{"log":"(jobs|deliveries)","sequence":(\d+),"event":(.*)\}')


@dataclass(frozen=True, slots=True)
class StoredHistory:
    job_id: str
    events: tuple[StoredEvent, ...] = ()
    """The events of the job, in order."""
    deliveries: tuple[StoredEvent, ...] = ()
    """The events of the delivery, in order."""

    def joined(self, later: StoredHistory) -> StoredHistory:
        """Return this history, followed by those events of `later` that are not in this history."""
        return StoredHistory(
            self.job_id,
            _joined(self.events, later.events),
            _joined(self.deliveries, later.deliveries),
        )


def _joined(events: Sequence[StoredEvent], later: Sequence[StoredEvent]) -> tuple[StoredEvent, ...]:
    # Payloads are compared instead of sequences, because sequences restart at 1 after the loss of a
    # log.
    known = {event.payload for event in events}
    return (*events, *(event for event in later if event.payload not in known))


def encode_history(history: StoredHistory) -> bytes:
    """Encode a history; equal histories have equal bytes.

    Raises ValueError if a payload contains a newline.
    """
    lines = [json.dumps({"format": FORMAT, "job": history.job_id}).encode()]
    for log, events in ((b"jobs", history.events), (b"deliveries", history.deliveries)):
        for event in events:
            if b"\n" in event.payload:
                raise ValueError("an event of a history must be one line")
            lines.append(
                b'{"log":"%b","sequence":%d,"event":%b}' % (log, event.sequence, event.payload)
            )
    return gzip.compress(b"\n".join((*lines, b"")), _LEVEL, mtime=0)


def decode_history(data: bytes) -> StoredHistory:
    """Decode a history. Raises HistoryBroken if the bytes are not a result of `encode_history`."""
    try:
        head, *lines, end = gzip.decompress(data).split(b"\n")
        header = json.loads(head)
        if header["format"] != FORMAT:
            raise HistoryBroken("The history has a format that this version does not know.")
        if end:
            raise ValueError("the last line has no end")
        logs: dict[bytes, list[StoredEvent]] = {b"jobs": [], b"deliveries": []}
        for line in lines:
            found = _LINE.fullmatch(line)
            if found is None:
                raise ValueError("a line is not an event")
            logs[found[1]].append(StoredEvent(int(found[2]), found[3]))
        return StoredHistory(str(header["job"]), tuple(logs[b"jobs"]), tuple(logs[b"deliveries"]))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise HistoryBroken("The history cannot be read.") from error


FindHistory = Callable[[str], Awaitable[str | None]]
"""A function that returns the key of a job's history object, or None if there is no object.

The function raises DatabaseUnavailable.
"""

_TRIES = 5
"""The largest number of reads of a history object, which may be replaced after the look-up of its
key.
"""


async def read_history(images: ImageStore, key: str) -> StoredHistory:
    """Return the content of a history object.

    Raises ImageNotFound, ImageStoreUnavailable and HistoryBroken. HistoryBroken is also raised if
    the key names another job than the object.
    """
    data = await images.get(key)
    try:
        history = await asyncio.to_thread(decode_history, data)
    except HistoryBroken as error:
        raise HistoryBroken(f"{error} Its object is {key}.") from error
    name = history_name(key)
    if name is None or name.job_id != history.job_id:
        raise HistoryBroken(f"The object {key} has the history of another job.")
    return history


async def write_history(images: ImageStore, key: str, history: StoredHistory) -> None:
    """Store the whole object durably, or nothing.

    Raises ImageStoreUnavailable, ValueError.
    """
    await images.put(key, await asyncio.to_thread(encode_history, history))


class HistoryObjects:
    """Reads the history objects of jobs, by the keys in the database rows of the jobs."""

    def __init__(self, images: ImageStore, find: FindHistory) -> None:
        self._images = images
        self._find = find

    async def has(self, job_id: str) -> bool:
        """Return whether the job has a history object. Raises DatabaseUnavailable."""
        return await self._find(job_id) is not None

    async def get(self, job_id: str) -> StoredHistory:
        """Return the content of the job's history object, or an empty history without an object.

        Raises DatabaseUnavailable, ImageStoreUnavailable, ImageNotFound, HistoryBroken.
        """
        for is_last_try in (*[False] * (_TRIES - 1), True):
            key = await self._find(job_id)
            if key is None:
                break
            try:
                return await read_history(self._images, key)
            except ImageNotFound:
                if is_last_try:
                    raise
        return StoredHistory(job_id)


class JoinedLog:
    """An event log together with the events that were moved from it to history objects."""

    def __init__(
        self,
        log: EventLog,
        objects: HistoryObjects,
        events_of: Callable[[StoredHistory], Iterable[StoredEvent]],
    ) -> None:
        """`events_of` selects the events of this log from a history."""
        self._log = log
        self._objects = objects
        self._events_of = events_of

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        """Append an event, also if the event at the position `expected` has left the log.

        An `Erased` does not depend on earlier events, so it needs no history object. Raises the
        errors of `EventLog.append` and of `HistoryObjects`.
        """
        try:
            return await self._log.append(event, expected=expected)
        except HistoryGone:
            if not await self._objects.has(event.job_id):
                raise
        if not isinstance(event.data, Erased):
            older = await self._older(event.job_id)
            if later := _behind(older, expected):
                return Conflict(tuple(later))
        return await self._log.append(event, expected=0)

    async def read(self, job_id: str) -> list[Event]:
        """Return every event of the job, oldest first.

        Raises the errors of `EventLog.read`. If some events have left the log, it also raises the
        errors of `HistoryObjects.get`.
        """
        events = await self._log.read(job_id)
        if events and (events[0].version == 1 or isinstance(events[-1].data, Erased)):
            return events
        older = await self._older(job_id)
        known = {event.id for event in older}
        return older + [event for event in events if event.id not in known]

    async def _older(self, job_id: str) -> list[Event]:
        """Return the events of this log in the history object of the job."""
        return decode_all(self._events_of(await self._objects.get(job_id)), job_id=job_id)

    async def last(self, job_id: str) -> Event | None:
        return await self._log.last(job_id)

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._log.read_raw(job_ids)

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        await self._log.purge(job_id, keep=keep, upto=upto)

    def reader(self, *, after: int) -> AbstractAsyncContextManager[EventReader]:
        return self._log.reader(after=after)

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Subscription]:
        return self._log.watch(job_id)


def _behind(events: list[Event], expected: int) -> list[Event]:
    """Return the events after the last event with the position `expected`.

    After the loss of a log, positions restart at 1, so they do not always rise.
    """
    for number, event in reversed(list(enumerate(events))):
        if event.position == expected:
            return events[number + 1 :]
    return [event for event in events if event.position > expected]


class History:
    """Every event of a job and of its delivery, from the log and from its history object."""

    def __init__(
        self, *, log: EventLog, deliveries: EventLog, images: ImageStore, find: FindHistory
    ) -> None:
        objects = HistoryObjects(images, find)
        self.log = JoinedLog(log, objects, lambda history: history.events)
        """The log of jobs, also for writers."""
        self.delivery_log = JoinedLog(deliveries, objects, lambda history: history.deliveries)
        """The log of deliveries, also for writers."""

    async def read(self, job_id: str) -> list[Event]:
        """Return every event of the job, oldest first, or an empty list if the job is unknown.

        The only event of an erased job is `Erased`. Raises LogUnavailable and ReadTimeout. If
        some events have left the log, it also raises DatabaseUnavailable, ImageStoreUnavailable,
        ImageNotFound and HistoryBroken.
        """
        return await self.log.read(job_id)

    async def deliveries(self, job_id: str) -> list[Event]:
        """Return every event of the delivery, oldest first. Raises the same errors as `read`."""
        return await self.delivery_log.read(job_id)
