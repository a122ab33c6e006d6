"""An event log that waits out outages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from events.errors import LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout
from events.log import Appended, Conflict, EventLog, EventReader, StoredEvent, Subscription
from events.retry import keep_trying
from events.streams.log_streams import LogPlace
from events.types import Event

T = TypeVar("T")


class PersistentLog:
    """For the writers of accepted jobs: waits without limit while the log is not available or full.

    The same bytes are sent again under the same expected sequence, so nothing is stored twice.
    """

    def __init__(self, log: EventLog, *, longest_pause_s: float = 2.0) -> None:
        self._log = log
        self._longest_pause_s = longest_pause_s

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        return await self._persist(lambda: self._log.append(event, expected=expected))

    async def read(self, job_id: str) -> list[Event]:
        return await self._persist(lambda: self._log.read(job_id))

    async def last(self, job_id: str) -> Event | None:
        return await self._persist(lambda: self._log.last(job_id))

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._persist(lambda: self._log.stored(job_ids))

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        await self._persist(lambda: self._log.purge(job_id, keep=keep, upto=upto))

    def reader(self, *, after: LogPlace) -> AbstractAsyncContextManager[EventReader]:
        return self._log.reader(after=after)

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Subscription]:
        return self._log.watch(job_id)

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        return await keep_trying(
            call,
            on=(LogUnavailable, LogFull, OutcomeUnknown, ReadTimeout),
            first_pause_s=0.1,
            longest_pause_s=self._longest_pause_s,
            fields={"action": "persist"},
        )
