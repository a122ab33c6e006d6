"""The event log as the rest of the service sees it, and the writer that decides on top of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Generic, Protocol, TypeVar, get_args

from events.decisions import Command, Erase, Submit, decide
from events.delivery import Delivery, DeliveryCommand, decide_delivery, fold_delivery
from events.errors import ReadTimeout
from events.ids import new_id
from events.job import Job, fold, fold_for_erasure, fold_for_submission
from events.streams.log_streams import LogPlace
from events.types import DeliveryEvent, Event, EventData, JobEvent


@dataclass(frozen=True, slots=True)
class Appended:
    event: Event
    """With its position."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Others wrote first; nothing was stored."""

    events: tuple[Event, ...]
    """The events after the expected position."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it was stored, byte for byte."""

    sequence: int
    """Its position in the log."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class StreamState:
    """How much the log or a queue holds."""

    messages: int
    size_bytes: int
    max_bytes: int
    """-1: any number."""
    last_sequence: int

    @property
    def fill(self) -> float:
        """0..1 of `max_bytes`."""
        return self.size_bytes / self.max_bytes if self.max_bytes > 0 else 0.0


class Subscription(Protocol):
    async def next(self, timeout_s: float) -> Event | None:
        """The next stored event; None if none came in time.

        Raises LogUnavailable if nothing can come any more: watch again.
        """


class EventReader(Protocol):
    async def next(self, timeout_s: float) -> list[Event]:
        """The next events in log order, none twice; empty if none came in time.

        With `timeout_s` 0 those that have come by now.
        """


class EventConsumer(Protocol):
    """A reader of the whole log whose place is kept for it."""

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        """Hand every event to `handle`, at least once, until cancelled.

        Several are handled at a time, begun in log order. One counts as handled when `handle`
        returns.
        """


class WholeConsumer(EventConsumer, Protocol):
    """A consumer of the log of the jobs, which may be several streams."""

    @property
    def parts(self) -> Sequence[EventConsumer]:
        """Of each stream, by its index; with one stream perhaps this consumer itself."""


class EventLog(Protocol):
    """The events of every job, one exact subject each."""

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        """Store `event` durably if the job's last position is still `expected` (0: no event yet).

        Raises LogUnavailable, LogFull, HistoryGone (nothing stored), OutcomeUnknown (perhaps
        stored).
        """

    async def read(self, job_id: str) -> list[Event]:
        """Every event of the job that the log has, oldest first; empty if it has none.

        What this version cannot read is among them, as `Unreadable` (see `events.types`).

        Raises LogUnavailable, ReadTimeout.
        """

    async def stored(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        """What the log has of these jobs, in order; one of which it has nothing is left out.

        A replica answers, so the last events may be missing. Raises LogUnavailable.
        """

    async def last(self, job_id: str) -> Event | None:
        """The job's last event, as the leader has it. Raises LogUnavailable."""

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        """Remove all events of the job but the last `keep`, or only those up to position `upto`.

        Raises LogUnavailable.
        """

    def reader(self, *, after: LogPlace) -> AbstractAsyncContextManager[EventReader]:
        """Follow the whole log from the place `after`. Events of a job come in their order."""

    def watch(self, job_id: str) -> AbstractAsyncContextManager[Subscription]:
        """What is stored for one job from now on."""


class WholeLog(EventLog, Protocol):
    """The log of the jobs, which may be several streams."""

    @property
    def parts(self) -> Sequence[EventLog]:
        """Each stream, by its index; with one stream this log itself."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class Folded(Protocol):
    """A state with the version and position of the last event folded into it."""

    @property
    def version(self) -> int: ...

    @property
    def position(self) -> int: ...


S = TypeVar("S", bound=Folded | None)
E = TypeVar("E", bound=EventData)


class Writer(Generic[S]):
    """Decides on a state and appends; after a conflict folds the new events and decides again."""

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
        """The state after the events, and the events that this call stored.

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
        """Raises ReadTimeout if there are none: the same decision would be refused without end."""
        folded = self._fold(conflict.events, state)
        ahead: Folded | None = folded
        if ahead is None or ahead.position <= expected:
            raise ReadTimeout("the log refused an append, but shows nothing behind it")
        return folded


@dataclass(frozen=True, slots=True)
class Outcome:
    """The job after a command, and the events that the command itself added."""

    job: Job | None
    added: tuple[JobEvent, ...]


class JobWriter:
    """Runs a job's commands."""

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
        """Raises LogUnavailable, ReadTimeout, JobUnreadable."""
        return fold(await self._log.read(job_id))

    async def submit(
        self, job_id: str, command: Submit, *, traceparent: str | None = None
    ) -> Outcome:
        """`added` is empty if a job of this id exists already."""
        return await self._execute(job_id, command, None, traceparent=traceparent)

    async def execute(self, command: Command, job: Job) -> Outcome:
        return await self._execute(job.id, command, job, traceparent=job.traceparent)

    async def _execute(
        self, job_id: str, command: Command, job: Job | None, *, traceparent: str | None
    ) -> Outcome:
        """Nothing is decided on what cannot be read; but it is found again, and can be erased."""
        state, added = await self._writers[type(command)].write(
            job_id, job, partial(decide, command), traceparent=traceparent
        )
        return Outcome(job=state, added=added)


class DeliveryWriter:
    """Runs the commands of deliveries."""

    def __init__(
        self, log: EventLog, *, on_added: Callable[[DeliveryEvent], None] = lambda _: None
    ) -> None:
        """`on_added` is told of each event that this writer has stored."""
        self._log = log
        self._writer: Writer[Delivery] = Writer(log, fold=fold_delivery)
        self._on_added = on_added

    async def load(self, job_id: str) -> Delivery:
        return fold_delivery(await self._log.read(job_id))

    async def execute(
        self, command: DeliveryCommand, job: Job, delivery: Delivery
    ) -> tuple[Delivery, tuple[DeliveryEvent, ...]]:
        """The delivery of `job` after the command, and the events that this call added."""
        decide = partial(decide_delivery, command)
        delivery, added = await self._writer.write(
            job.id, delivery, decide, traceparent=job.traceparent
        )
        for event in added:
            self._on_added(event)
        return delivery, added


def stored(event: Event, position: int, *, size_bytes: int) -> Event:
    return replace(event, position=position, size_bytes=size_bytes)
