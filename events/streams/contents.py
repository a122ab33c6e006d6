"""All that a log holds, as whoever checks it sees it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Protocol

from events.log import StoredEvent
from events.streams.log_streams import LogPlace


class LogContents(Protocol):
    """All that a log holds, as it is stored, also what no reader can decode: for whoever checks it.

    Nothing is delivered or changed by looking.
    """

    @property
    def parts(self) -> Sequence[LogContents]:
        """Of each stream, by its index; with one stream these contents themselves."""

    def job_ids(self) -> AsyncGenerator[list[str]]:
        """Every job that has a message, once, some at a time. Raises LogUnavailable."""

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        """See `EventLog.stored`."""

    async def following(self, sequence: LogPlace) -> list[StoredEvent]:
        """Some messages after a place, each stream's in order; empty if none are.

        Raises LogUnavailable.
        """

    async def last_sequence(self) -> LogPlace:
        """Of the last message that was ever stored; 0 before the first. Raises LogUnavailable."""
