"""The content of the log in memory; see `events.log.LogContents`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from operator import attrgetter

from events.log import StoredEvent
from tests.support.memory.log import MemoryLog


class MemoryLogContents:
    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._log.stored(job_ids)

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        yield self._log.job_ids()

    async def following(self, offset: int) -> list[StoredEvent]:
        stored = await self._log.stored(self._log.job_ids())
        later = (each for some in stored.values() for each in some if each.sequence > offset)
        return sorted(later, key=attrgetter("sequence"))

    async def last_sequence(self) -> int:
        return self._log.last_position
