"""A log that fails where a test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from events.errors import OutcomeUnknown
from events.log import Appended, Conflict, StoredEvent, utc_now
from events.memory.log import MemoryLog
from events.types import Broken, Event, Unknown, Unreadable


class FailingLog(MemoryLog):
    """`append_error`, `read_error` and `purge_error` are raised as long as they are set.

    With `stores_first`, an append that fails has stored its event: its answer was lost.
    """

    def __init__(self) -> None:
        super().__init__()
        self.append_error: Exception | None = None
        self.read_error: Exception | None = None
        self.purge_error: Exception | None = None
        self.stores_first = False
        self.reads: Counter[str] = Counter()
        """How often each job was asked for."""
        self.unreadable: set[str] = set()
        """Jobs with something that is no event behind the others."""
        self.of_later_version: set[str] = set()
        """Jobs with an event of a later version behind the others."""

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        if self.append_error is None:
            return await super().append(event, expected=expected)
        if self.stores_first:
            await super().append(event, expected=expected)
        raise self.append_error

    async def read(self, job_id: str) -> list[Event]:
        self.reads[job_id] += 1
        if self.read_error is not None:
            raise self.read_error
        events = await super().read(job_id)
        if job_id in self.unreadable:
            events.append(_behind(events, job_id, Broken(why="cut off")))
        if job_id in self.of_later_version:
            unknown = Unknown(original_type="darkroom.job.paused.v1")
            events.append(_behind(events, job_id, unknown))
        return events

    @property
    def last_position(self) -> int:
        if self.read_error is not None:
            raise self.read_error
        return super().last_position

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        found = await super().stored(job_ids)
        for job_id in self.unreadable & found.keys():
            last = found[job_id][-1].sequence
            found[job_id] += (StoredEvent(last + 1, b"not an event"),)
        return found

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        if self.purge_error is not None:
            raise self.purge_error
        await super().purge(job_id, keep=keep, upto=upto)

    def lose_answers(self) -> None:
        """What is appended from now on is stored, but its answer is lost."""
        self.append_error, self.stores_first = OutcomeUnknown(), True

    def recover(self) -> None:
        self.append_error = self.read_error = self.purge_error = None


def _behind(events: list[Event], job_id: str, data: Unreadable) -> Event:
    """As if it was the last event of the job."""
    version, position = (events[-1].version, events[-1].position) if events else (0, 0)
    return Event(
        id="", job_id=job_id, version=version + 1, time=utc_now(), data=data, position=position + 1
    )
