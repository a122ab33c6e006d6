"""The interfaces of the queues; `events.bus.queues` implements them on JetStream.

A queue is a projection of the log and can be rebuilt at any time. It shows which jobs or deliveries
are left, but not what was done for them. A holder of an entry must therefore fold the job before it
acts.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from events.job import Job
from settings.constant import constant

LEASE_S = constant("LEASE_S", 30.0)
"""The time in seconds for which a job's actor holds the entry without a renewal. Then the entry is
delivered again, and another actor may get the job.
"""
REQUEUE_PERIOD_S = constant("REQUEUE_PERIOD_S", 60.0)
"""Seconds between two repairs of a queue, which add missing entries."""
AT_ONCE = datetime(2000, 1, 1, tzinfo=UTC)
"""A time in the past by every clock. A delivery that is parked until `AT_ONCE` is due now."""


class QueueEntry(Protocol):
    """One job on a queue, delivered to a holder. `JetStreamEntry` implements it.

    An entry that is neither acknowledged nor renewed in time is delivered again. Then there are two
    holders, and each may acknowledge, return or renew the entry. Only the events decide who may
    write.
    """

    @property
    def job_id(self) -> str: ...

    @property
    def token(self) -> str:
        """A text with which another process can reopen this entry (`JobQueue.entry`)."""

    @property
    def stored_at(self) -> datetime:
        """The time at which the entry was put on the queue, by the clock of the queue's server.

        By this clock, the server decides when a parked entry becomes due. So an entry that was
        stored at or after its due time is due, even if the clock of the reader is behind.
        """

    async def ack(self) -> None:
        """Remove the entry from the queue. It may be delivered again if the server does not
        confirm.
        """

    async def nak(self) -> None:
        """Return the entry to the queue, which delivers it again at once."""

    async def renew(self) -> None:
        """Restart the ack wait. An entry is delivered again at the end of its ack wait."""

    async def hold(self, *, for_s: float) -> None:
        """Have the entry delivered again after `for_s` seconds, instead of after its ack wait."""


class EntryConsumer(Protocol):
    """Delivers entries of a queue to one holder. `JetStreamEntries` implements it."""

    async def next(self, *, most: int, timeout_s: float) -> Sequence[QueueEntry]:
        """Return the entries that have arrived, or wait for the next entries.

        The result is empty if no entry came in time. `most` is the number of entries in a request
        to the server. The result may have entries of two requests. Raises LogUnavailable.
        """


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits or runs, read from its entry without becoming a holder."""

    job_id: str
    lane: int
    position: int
    """The position on the queue. A later entry has a higher position."""
    deadline: datetime


class JobQueue(Protocol):
    """Jobs that wait or run, by endpoint and lane. `JetStreamJobQueue` implements it."""

    async def add(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        """Add an entry unless the job already has an entry. Raises LogUnavailable, LogFull."""

    async def put_again(self, endpoint: str, lane: int, job_id: str, *, deadline: datetime) -> None:
        """Replace the job's entry with a new entry, even if the old entry has a holder.

        The job has an entry at all times. Raises LogUnavailable, LogFull.
        """

    async def remove(self, endpoint: str, lane: int, job_id: str) -> None:
        """Remove the entry if it exists. Raises LogUnavailable."""

    async def depth(self, endpoint: str) -> int:
        """Return the number of entries, for waiting and running jobs. It may be a second old.

        Raises LogUnavailable.
        """

    async def ahead(self, endpoint: str, lane: int, job_id: str) -> int | None:
        """Return the number of entries before that of this job, including running jobs.

        The result is None if the job has no entry. Raises LogUnavailable.
        """

    async def job_ids(self) -> set[str]:
        """Return the id of every job that has an entry. Raises LogUnavailable."""

    async def queued(self, endpoint: str, *, after: int, most: int) -> list[QueuedJob]:
        """Return the first `most` jobs of an endpoint after a position, waiting or running.

        The result has fewer jobs only if the endpoint has no more. Raises LogUnavailable.
        """

    async def made_at(self) -> datetime:
        """Return the time at which the queue was created.

        If the queue was lost and created again, this time is different and positions restart at 1.
        Raises LogUnavailable.
        """

    async def endpoints(self) -> set[str]:
        """Return every endpoint that has entries or consumers. Raises LogUnavailable."""

    async def forget(self, endpoint: str) -> None:
        """Remove the consumers of an endpoint, but not its entries. Raises LogUnavailable.

        An open `EntryConsumer` of the endpoint then raises LogUnavailable, and may be opened again.
        """

    def consume(self, endpoint: str, number: int) -> AbstractAsyncContextManager[EntryConsumer]:
        """Open consumer `number` of the endpoint, from 0 to `CONSUMERS` - 1.

        Raises LogUnavailable.
        """

    def entry(self, job_id: str, token: str) -> QueueEntry:
        """Return an entry that was delivered to another process."""


class CallbackQueue(Protocol):
    """The deliveries that are due now or later, at most one for each job.

    `JetStreamCallbackQueue` implements it.
    """

    async def add(self, job_id: str) -> None:
        """Make a delivery due now, unless it is already due. Raises LogUnavailable, LogFull."""

    async def park(self, job_id: str, until: datetime, *, line: str | None = None) -> None:
        """Make a delivery due at `until`, instead of at the time of an earlier call.

        `line` names the queue of deliveries in which this delivery waits for its receiver, or is
        None; see `in_line`. Raises LogUnavailable, LogFull.
        """

    def in_line(self) -> AsyncGenerator[dict[str, str]]:
        """Yield the `line` of each delivery that was parked with one, by job id, in pages.

        The pages are in the order of parking. Raises LogUnavailable.
        """

    async def waiting(self, job_ids: Collection[str]) -> set[str]:
        """Return those of `job_ids` whose delivery is due or parked. Raises LogUnavailable."""

    async def job_ids(self) -> set[str]:
        """Return the id of every job whose delivery is due or parked. Raises LogUnavailable."""

    def due(self, *, most_held: int, hold_s: float) -> AbstractAsyncContextManager[EntryConsumer]:
        """Open a consumer of the due entries.

        `most_held` is the largest number of entries that all holders together have at the same
        time. An entry that is not renewed for `hold_s` seconds is delivered again. Raises
        LogUnavailable.
        """


class QueueContents(Protocol):
    """All entries of a queue, for checks. A read does not deliver or acknowledge an entry.

    `JetStreamJobQueueContents` and `JetStreamCallbackQueueContents` implement it.
    """

    def job_ids(self) -> AsyncGenerator[list[str]]:
        """Yield the id of every job that has an entry, in pages. Raises LogUnavailable."""

    async def has(self, job: Job) -> bool:
        """Return whether the job has an entry. Raises LogUnavailable."""
