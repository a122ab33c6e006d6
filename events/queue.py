"""The queues, as the rest of the service sees them.

A queue is a projection of the log: it says what is left to do, never what was done, and can be
built again at any time. So whoever takes an entry folds the job first. `events.bus.queues` keeps
the queues on JetStream, `events.memory.queues` keeps them in memory for tests.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from events.job import Job
from events.wire.callback_keys import PARTS, UNDIVIDED

AT_ONCE = datetime(2000, 1, 1, tzinfo=UTC)
"""A time that is over by every clock: what is parked until then is due now."""


class QueueEntry(Protocol):
    """One job on a queue, delivered to a holder.

    An entry that is neither acknowledged nor renewed in time is delivered again. Being the holder
    is no fence: an entry of an earlier delivery still acknowledges, returns and renews the later
    one. The job's events decide who may write.
    """

    @property
    def job_id(self) -> str: ...

    @property
    def token(self) -> str:
        """Opens this entry again in another process (`JobQueue.entry`)."""

    @property
    def stored_at(self) -> datetime:
        """When it was put on the queue, by the clock of the server that keeps the queue.

        That clock decides when what is parked becomes due. So an entry that was stored at or after
        the time that its work waits for is due, however far the reader's own clock is behind.
        """

    async def ack(self) -> None:
        """Take it off the queue. If the server does not answer, it is delivered again."""

    async def nak(self) -> None:
        """Give it back, to be delivered again at once."""

    async def renew(self) -> None:
        """Hold it for another full time."""

    async def hold(self, *, for_s: float) -> None:
        """Hold it for this long, whatever is left of its time."""


class CallbackEntry(QueueEntry, Protocol):
    @property
    def key(self) -> str:
        """As it was added or parked; see `events.wire.callback_keys`."""


class EntryReader(Protocol):
    """Takes entries off the head of a queue, for one holder."""

    async def next(self, *, most: int, timeout_s: float) -> Sequence[QueueEntry]:
        """What has come by now, else the next entries to come; empty if none came in time.

        Entries come ahead, so there may be more than `most` of them, which is how many are asked
        for where none is on its way. Raises LogUnavailable.
        """


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits or runs, as its entry on the queue tells of it to who holds no entry."""

    job_id: str
    lane: int
    position: int
    """On the queue: a later entry has a higher one."""
    deadline: datetime | None
    """None: the entry was put there by a version that did not say it."""


class JobQueue(Protocol):
    """Jobs that wait or run, by endpoint and lane."""

    async def add(
        self, endpoint: str, lane: int, job_id: str, *, deadline: datetime | None = None
    ) -> None:
        """Does nothing if the job waits or runs. Raises LogUnavailable, LogFull."""

    async def put_again(
        self, endpoint: str, lane: int, job_id: str, *, deadline: datetime | None = None
    ) -> None:
        """A new entry in the place of the one that is there, whoever holds that.

        At no time there is none. Raises LogUnavailable, LogFull.
        """

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        """Does nothing if there is no entry. Raises LogUnavailable."""

    async def depth(self, endpoint: str) -> int:
        """Entries that wait or run. May be a second old. Raises LogUnavailable."""

    async def ahead(self, endpoint: str, lane: int, job_id: str) -> int | None:
        """How many entries of the endpoint stand before this job's, whether they wait or run.

        None where it has no entry. Raises LogUnavailable.
        """

    async def job_ids(self) -> set[str]:
        """Every job that has an entry. Raises LogUnavailable."""

    async def queued(self, endpoint: str, *, after: int, most: int) -> list[QueuedJob]:
        """The first jobs of an endpoint behind a position, whether they wait or run.

        Fewer than `most` only if there are no more. Raises LogUnavailable.
        """

    async def made_at(self) -> datetime:
        """Another time once the queue was lost and made again: then positions begin anew.

        Raises LogUnavailable.
        """

    async def endpoints(self) -> set[str]:
        """Every endpoint that has entries, or whose lanes were read. Raises LogUnavailable."""

    async def forget(self, endpoint: str) -> None:
        """Remove what was made to read the lanes of an endpoint; entries stay.

        Whoever reads a lane meanwhile gets LogUnavailable, and may begin again. Raises
        LogUnavailable.
        """

    def reader(self, endpoint: str, number: int) -> AbstractAsyncContextManager[EntryReader]:
        """Take the entries of some lanes (`events.ids.READERS`). Raises LogUnavailable."""

    def entry(self, job_id: str, token: str) -> QueueEntry:
        """An entry that was delivered to another process."""


class CallbackReader(Protocol):
    async def next(self, *, most: int, timeout_s: float) -> Sequence[CallbackEntry]:
        """See `EntryReader`."""


class CallbackQueue(Protocol):
    """Deliveries of callbacks that wait, due now or later, by their keys.

    A key says which part of the queue it is in; see `events.wire.callback_keys`.
    """

    async def add(self, key: str) -> None:
        """Due at once. Does nothing if it is due already. Raises LogUnavailable, LogFull."""

    async def park(self, key: str, until: datetime, *, line: str | None = None) -> None:
        """Due at `until`; replaces an earlier time. Raises LogUnavailable, LogFull.

        `line`: what it stands in line for, where it does; see `in_line`.
        """

    def in_line(self, parts: Sequence[str] = PARTS) -> AsyncGenerator[dict[str, str]]:
        """What each delivery that is parked in a line stands there for, by key, some at a time.

        Of each part those that were parked earlier come first. Raises LogUnavailable.
        """

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        """Those of these jobs whose delivery is due or parked, in whichever part.

        Raises LogUnavailable.
        """

    async def job_ids(self) -> set[str]:
        """Every job whose delivery is due or parked. Raises LogUnavailable."""

    def due(
        self, *, most_held: int, hold_s: float, part: str = UNDIVIDED
    ) -> AbstractAsyncContextManager[CallbackReader]:
        """Take what is due of one part, or of all divided ones. Raises LogUnavailable.

        `most_held`: how many entries all readers of this together hold at most; `hold_s`: after
        this long without a renewal an entry is delivered again. While there are readers of single
        ones, none of all can begin, and the other way round: it gets LogUnavailable.
        """


class QueueContents(Protocol):
    """All that a queue holds, whether it waits or is held: for whoever checks it.

    Nothing is delivered or acknowledged by looking.
    """

    def job_ids(self) -> AsyncGenerator[list[str]]:
        """Every job that has an entry, some at a time. Raises LogUnavailable."""

    async def has(self, job: Job) -> bool:
        """Whether the job has an entry. Raises LogUnavailable."""
