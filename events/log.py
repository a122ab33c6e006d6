"""The interface of the event log, the writers of events, and `RetryingLog`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Generic, Protocol, TypeVar, get_args

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


class EventConsumer(Protocol):
    """A reader of all events, whose offset NATS stores. `JetStreamConsumer` implements it."""

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        """Pass every event to `handle`, at least once, until cancelled.

        Several calls run at the same time, and begin in log order. An event is acknowledged after
        its call has returned.
        """


class EventLog(Protocol):
    """The events of every job, or of the delivery of every job.

    `JetStreamLog` stores the events, each job under its own subject. `JoinedLog` also reads the
    events in history objects. `RetryingLog` repeats calls during an outage.
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

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
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


class LogContents(Protocol):
    """All stored messages of a log, even if they cannot be decoded.

    `JetStreamLogContents` implements it. A read changes nothing, and counts as no delivery.
    """

    def job_ids(self) -> AsyncGenerator[list[str]]:
        """Yield the ids of all jobs with messages, once each, in pages. Raises LogUnavailable."""

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        """See `EventLog.stored`."""

    async def following(self, offset: int) -> list[StoredEvent]:
        """Return the first messages after `offset`, in order; none if there is no later message.

        Raises LogUnavailable.
        """

    async def last_sequence(self) -> int:
        """Return the offset of the last message ever stored, or 0. Raises LogUnavailable."""


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


class Writer(Generic[S]):
    """Appends the events that `decide` returns for a state, with optimistic concurrency.

    After a conflict, the writer folds the new events and decides again.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        fold: Callable[[Iterable[Event], S], S],
        now: Callable[[], datetime] = utc_now,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self._log = log
        self._fold = fold
        self._now = now
        self._new_id = new_id

    async def write(
        self,
        job_id: str,
        state: S,
        decide: Callable[[S], Sequence[E]],
        *,
        traceparent: str | None = None,
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
                    state = self._fold_news(outcome, state, expected)
                    break
                state = self._fold([outcome.event], state)
                added.append(data)
            else:
                break
        return state, tuple(added)

    def _fold_news(self, conflict: Conflict, state: S, expected: int) -> S:
        """Fold the events of a conflict.

        Raises ReadTimeout if they are not new, because the same append would be repeated without
        end.
        """
        folded = self._fold(conflict.events, state)
        ahead: Folded | None = folded
        if ahead is None or ahead.position <= expected:
            raise ReadTimeout(
                "the log refused an append because of newer events, but a read did not return them"
            )
        return folded


@dataclass(frozen=True, slots=True)
class Outcome:
    """The job after a command, and the events that this command added."""

    job: Job | None
    added: tuple[JobEvent, ...]


class JobWriter:
    """Executes commands on jobs."""

    def __init__(
        self,
        log: EventLog,
        *,
        now: Callable[[], datetime] = utc_now,
        new_id: Callable[[], str] = new_id,
    ) -> None:
        self._log = log
        folds = {Submit: fold_for_submission, Erase: fold_for_erasure}
        self._writers: dict[type[Command], Writer[Job | None]] = {
            command: Writer(log, fold=folds.get(command, fold), now=now, new_id=new_id)
            for command in get_args(Command)
        }

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
        state, added = await self._writers[type(command)].write(
            job_id, job, partial(decide, command), traceparent=traceparent
        )
        return Outcome(job=state, added=added)


class DeliveryWriter:
    """Executes commands on deliveries."""

    def __init__(
        self, log: EventLog, *, on_added: Callable[[DeliveryEvent], None] = lambda _: None
    ) -> None:
        """`on_added` is called with each event that this writer has stored."""
        self._log = log
        self._writer: Writer[Delivery] = Writer(log, fold=fold_delivery)
        self._on_added = on_added

    async def load(self, job_id: str) -> Delivery:
        return fold_delivery(await self._log.read(job_id))

    async def execute(
        self, command: DeliveryCommand, job: Job, delivery: Delivery
    ) -> tuple[Delivery, tuple[DeliveryEvent, ...]]:
        """Return the delivery of `job` after the command, and the events that this call added."""
        decide = partial(decide_delivery, command)
        delivery, added = await self._writer.write(
            job.id, delivery, decide, traceparent=job.traceparent
        )
        for event in added:
            self._on_added(event)
        return delivery, added


def stored(event: Event, position: int, *, size_bytes: int) -> Event:
    return replace(event, position=position, size_bytes=size_bytes)


T = TypeVar("T")


class RetryingLog:
    """A log that repeats reads, appends and purges while the log is unavailable or full.

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

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        return await self._persist(lambda: self._log.stored(job_ids))

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        await self._persist(lambda: self._log.purge(job_id, keep=keep, upto=upto))

    def reader(self, *, after: int) -> AbstractAsyncContextManager[EventReader]:
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
