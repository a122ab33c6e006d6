"""The content of the log in memory; see `events.bus.jetstream_log.LogContents`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from operator import attrgetter

from events.bus.jetstream_log import LogContents
from events.log import StoredEvent
from tests.support.memory.log import MemoryLog


class MemoryLogContents(LogContents):
    def __init__(self, log: MemoryLog) -> None:
        self._memory = log

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._memory.read_raw(job_ids)

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        yield self._memory.job_ids()

    async def following(self, offset: int) -> list[StoredEvent]:
        stored = await self._memory.read_raw(self._memory.job_ids())
        later = (each for some in stored.values() for each in some if each.sequence > offset)
        return sorted(later, key=attrgetter("sequence"))

    async def last_sequence(self) -> int:
        return self._memory.last_position
