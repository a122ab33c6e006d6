"""The interface of the event log, the writers of events, and `RetryingLog`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Protocol, TypeVar

from events.decisions import Command, Erase, Submit, decide
from events.delivery import Delivery, DeliveryCommand, decide_delivery, fold_delivery
from events.errors import LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout
from events.ids import new_id
from events.job import Job, fold, fold_for_erasure, fold_for_submission
from events.retry import keep_trying
from events.types import DeliveryEvent, Event, EventData, JobEvent
from settings.constant import constant

APPEND_TIMEOUT_S = constant("LOG_APPEND_TIMEOUT_S", 10.0)
"""The time in seconds for which an append is repeated before it raises OutcomeUnknown."""


@dataclass(frozen=True, slots=True)
class Appended:
    event: Event
    """The event with its position in the log."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another writer appended first, so nothing was stored."""

    events: tuple[Event, ...]
    """The events after the expected position."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it was stored, with its exact bytes."""

    sequence: int
    """The position in the log."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """The size of a stream, which is a log or a queue."""

    messages: int
    size_bytes: int
    max_bytes: int
    """The limit of the size; -1 means no limit."""
    last_sequence: int

    @property
    def fill(self) -> float:
        """The used share of `max_bytes`, 0..1."""
        return self.size_bytes / self.max_bytes if self.max_bytes > 0 else 0.0


class Subscription(Protocol):
    async def next(self, timeout_s: float) -> Event | None:
        """Return the next stored event, or None if no event came in time.

        Raises LogUnavailable if the subscription is lost. The caller must then subscribe again.
        """


class EventReader(Protocol):
    async def next(self, timeout_s: float) -> list[Event]:
        """Return the next events in log order, without repeats; none if no event came in time.

        If `timeout_s` is 0, return only events that have already arrived.
        """


class EventLog(Protocol):
    """The events of every job, or of the delivery of every job.

    `JetStreamLog` stores the events, each job under its own subject. `JoinedLog` also reads the
    events in history objects.
    """

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        """Store `event` durably if `expected` is the position of the job's last event, or 0 for
        none.

        Raises LogUnavailable, LogFull, ReadTimeout or HistoryGone if nothing was stored, and
        OutcomeUnknown if the event may have been stored.
        """

    async def read(self, job_id: str) -> list[Event]:
        """Return every event of the job in the log, oldest first.

        Events that this version cannot read are included as `Unreadable` (see `events.types`).
        Raises LogUnavailable, ReadTimeout.
        """

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        """Return the stored events of these jobs, in order. Jobs without events are left out.

        A replica of the stream may answer that lags, so the last events may be missing. Raises
        LogUnavailable.
        """

    async def last(self, job_id: str) -> Event | None:
        """Return the job's last event, from the leader of the stream, or None without an event.

        Raises LogUnavailable.
        """

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        """Remove all events of the job except the last `keep` events.

        With `upto`, remove only events up to this position. Raises LogUnavailable.
        """

    def reader(self, *, after: int) -> AbstractAsyncContextManager[EventReader]:
        """Open a reader of all events after the offset `after`."""

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Subscription]:
        """Subscribe to the events of one job that are stored after the subscription."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class Folded(Protocol):
    """A state with the version and the position of its last event: `Job` or `Delivery`."""

    @property
    def version(self) -> int: ...

    @property
    def position(self) -> int: ...


S = TypeVar("S", bound=Folded | None)
E = TypeVar("E", bound=EventData)


class _Writer:
    """Appends the events that `decide` returns for a state, with optimistic concurrency.

    After a conflict, the writer folds the new events and decides again.
    """

    def __init__(
        self,
        log: EventLog | RetryingLog,
        *,
        now: Callable[[], datetime] = utc_now,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self._log = log
        self._now = now
        self._new_id = new_id

    async def _write(
        self,
        job_id: str,
        state: S,
        decide: Callable[[S], Sequence[E]],
        fold: Callable[[Iterable[Event], S], S],
        *,
        traceparent: str | None,
    ) -> tuple[S, tuple[E, ...]]:
        """Append events until `decide` returns none. Return the new state and the appended events.

        Raises LogUnavailable, LogFull, OutcomeUnknown, ReadTimeout, HistoryGone, JobUnreadable.
        """
        added: list[E] = []
        while decided := decide(state):
            for data in decided:
                previous: Folded | None = state
                event = Event(
                    id=self._new_id(),
                    job_id=job_id,
                    version=(previous.version if previous else 0) + 1,
                    time=self._now(),
                    data=data,
                    traceparent=traceparent,
                )
                expected = previous.position if previous else 0
                outcome = await self._log.append(event, expected=expected)
                if isinstance(outcome, Conflict):
                    state = fold(outcome.events, state)
                    _require_progress(state, expected)
                    break
                state = fold([outcome.event], state)
                added.append(data)
            else:
                break
        return state, tuple(added)


def _require_progress(state: Folded | None, expected: int) -> None:
    """Raise ReadTimeout if the events of a conflict are not after the position `expected`.

    Otherwise the same append would be repeated without end.
    """
    if state is None or state.position <= expected:
        raise ReadTimeout(
            "the log refused an append because of newer events, but a read did not return them"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The job after a command, and the events that this command added."""

    job: Job | None
    added: tuple[JobEvent, ...]


class JobWriter(_Writer):
    """Executes commands on jobs."""

    async def load(self, job_id: str) -> Job | None:
        """Read and fold a job, or return None if the log has no events of the job.

        Raises LogUnavailable, ReadTimeout, JobUnreadable.
        """
        return fold(await self._log.read(job_id))

    async def submit(
        self, job_id: str, command: Submit, *, traceparent: str | None = None
    ) -> Outcome:
        """Submit a job. The outcome has no events if a job with this id exists already."""
        return await self._execute(job_id, command, None, traceparent=traceparent)

    async def execute(self, command: Command, job: Job) -> Outcome:
        return await self._execute(job.id, command, job, traceparent=job.traceparent)

    async def _execute(
        self, job_id: str, command: Command, job: Job | None, *, traceparent: str | None
    ) -> Outcome:
        """Execute a command.

        Raises JobUnreadable if an event cannot be read, unless the command submits or erases the
        job.
        """
        fold_news = fold
        if isinstance(command, Submit):
            fold_news = fold_for_submission
        elif isinstance(command, Erase):
            fold_news = fold_for_erasure
        decided = partial(decide, command)
        return Outcome(*await self._write(job_id, job, decided, fold_news, traceparent=traceparent))


class DeliveryWriter(_Writer):
    """Executes commands on deliveries."""

    def __init__(
        self,
        log: EventLog | RetryingLog,
        *,
        on_added: Callable[[DeliveryEvent], None] = lambda _: None,
    ) -> None:
        """`on_added` is called with each event that this writer has stored."""
        super().__init__(log)
        self._on_added = on_added

    async def load(self, job_id: str) -> Delivery:
        return fold_delivery(await self._log.read(job_id))

    async def execute(
        self, command: DeliveryCommand, job: Job, delivery: Delivery
    ) -> tuple[Delivery, tuple[DeliveryEvent, ...]]:
        """Return the delivery of `job` after the command, and the events that this call added."""
        decide = partial(decide_delivery, command)
        delivery, added = await self._write(
            job.id, delivery, decide, fold_delivery, traceparent=job.traceparent
        )
        for event in added:
            self._on_added(event)
        return delivery, added


def at_position(event: Event, position: int, *, size_bytes: int) -> Event:
    return replace(event, position=position, size_bytes=size_bytes)


T = TypeVar("T")


class RetryingLog:
    """Repeats reads and appends while the log is unavailable or full.

    The writers of accepted jobs use it. An append is repeated with the same event id and the same
    expected sequence, so no event is stored twice.
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

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        return await keep_trying(
            call,
            on=(LogUnavailable, LogFull, OutcomeUnknown, ReadTimeout),
            first_pause_s=0.1,
            longest_pause_s=self._longest_pause_s,
            fields={"action": "persist"},
        )
