"""The event log on JetStream: one subject per job, and an expected sequence on every append.

`JetStreamLog` appends and reads, `EventConsumer` passes events to a handler, and
`LogContents` reads everything that is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager

from events.bus.bus import EXPECTED_LAST_SUBJECT_SEQUENCE, EXPECTED_STREAM, MESSAGE_ID, Bus
from events.bus.nats_errors import NoAnswer, WrongLastSequence
from events.bus.puller import Feed, Message, Puller
from events.bus.streams import (
    DELIVERIES,
    JOBS,
    ConsumerSpec,
    delivery_subject,
    event_subject,
    job_id_in,
    job_subject,
)
from events.cloud_events import decode_stored, encode
from events.errors import HistoryGone, LogFull, LogUnavailable, OutcomeUnknown, ReadTimeout
from events.ids import PARTITIONS
from events.log import (
    APPEND_TIMEOUT_S,
    Appended,
    Conflict,
    EventReader,
    StoredEvent,
    Subscription,
    at_position,
)
from events.retry import keep_trying, pause
from events.types import Erased, Event
from settings.constant import constant

_TRY_TIMEOUT_S = constant("LOG_APPEND_TRY_TIMEOUT_S", 2.0)
"""The time in seconds after which an append without an answer is sent again."""
_BATCH = 500
"""The number of events in a read, if the last event does not show how many there are."""


class JetStreamLog:
    """The log of the events of jobs (stream `JOBS`) or of deliveries (stream `DELIVERIES`)."""

    def __init__(
        self,
        bus: Bus,
        *,
        stream: str = JOBS,
        subject_of: Callable[[str], str] = job_subject,
        append_timeout_s: float = APPEND_TIMEOUT_S,
        try_timeout_s: float = _TRY_TIMEOUT_S,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._subject_of = subject_of
        self._append_timeout_s = append_timeout_s
        self._try_timeout_s = try_timeout_s

    async def append(self, event: Event, *, expected: int) -> Appended | Conflict:
        """Send the same bytes until there is an answer or the time is up; see `EventLog.append`.

        If an answer was lost, the event may be stored. Later errors then end in OutcomeUnknown. So
        does a stream that refuses all writes, because it would never answer.
        """
        payload = encode(event)
        headers = {
            EXPECTED_LAST_SUBJECT_SEQUENCE: str(expected),
            EXPECTED_STREAM: self._stream,
            MESSAGE_ID: event.id,
        }
        subject = self._subject_of(event.job_id)
        give_up_at = time.monotonic() + self._append_timeout_s
        sent = False
        while True:
            try:
                try:
                    sequence = await self._bus.store(
                        subject, payload, timeout_s=self._try_timeout_s, headers=headers
                    )
                except WrongLastSequence:
                    return await self._after_conflict(event, expected, give_up_at=give_up_at)
                return Appended(at_position(event, sequence, size_bytes=len(payload)))
            except NoAnswer:
                sent = True
                if await self._bus.write_error(self._stream) is not None:
                    raise OutcomeUnknown from None
            except (LogUnavailable, LogFull, ReadTimeout):
                if not sent:
                    raise
                await asyncio.sleep(0.1)
            if time.monotonic() >= give_up_at:
                raise OutcomeUnknown

    async def _after_conflict(
        self, event: Event, expected: int, *, give_up_at: float
    ) -> Appended | Conflict:
        """Decide the outcome of a refused append.

        The append may conflict with its own event, if the event was stored before and the answer
        was lost. The outcome is then `Appended`.
        """
        history = await self._history(event.job_id, give_up_at=give_up_at)
        mine = next((known for known in history if known.id == event.id), None)
        if mine is not None:
            return Appended(mine)
        if not history and expected:
            raise HistoryGone
        news = tuple(known for known in history if known.position > expected)
        if not news:
            raise ReadTimeout(
                "the log refused an append because of newer events, but a read did not return them"
            )
        return Conflict(news)

    async def read(self, job_id: str) -> list[Event]:
        return await self._history(job_id, give_up_at=time.monotonic() + self._append_timeout_s)

    async def _history(self, job_id: str, *, give_up_at: float) -> list[Event]:
        """Read the events of a job up to the last event that the stream's leader has.

        Usually the version of the last event shows the number of events. If the first events have
        left the log, there are fewer. Events before an `Erased` are not returned.
        """
        last = await self.last(job_id)
        if last is not None and last.version == 1:
            return [last]
        events: list[Event] = []
        while last is not None and not isinstance(last.data, Erased):
            seen = events[-1].version if events else 0
            messages = await self._bus.batch(
                self._stream,
                self._subject_of(job_id),
                after=events[-1].position if events else 0,
                count=max(last.version - seen, 0) or _BATCH,
                timeout_s=self._try_timeout_s,
            )
            events += map(event_in, messages)
            if events and events[-1].position >= last.position:
                return events
            if time.monotonic() >= give_up_at:
                raise ReadTimeout
            await asyncio.sleep(0.05)
            # `last` is read again, because events may have been purged since.
            last = await self.last(job_id)
        return [] if last is None else [last]

    async def last(self, job_id: str) -> Event | None:
        message = await self._bus.last(self._stream, self._subject_of(job_id))
        return event_in(message) if message else None

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        by_subject = {self._subject_of(job_id): job_id for job_id in job_ids}
        found = await self._bus.batches(
            self._stream, list(by_subject), timeout_s=self._append_timeout_s
        )
        return {
            by_subject[subject]: tuple(StoredEvent(each.sequence, each.data) for each in messages)
            for subject, messages in found.items()
        }

    async def purge(self, job_id: str, *, keep: int = 0, upto: int | None = None) -> None:
        await self._bus.purge(self._stream, self._subject_of(job_id), keep=keep, upto=upto)

    @asynccontextmanager
    async def reader(self, *, after: int) -> AsyncGenerator[EventReader]:
        async with JetStreamReader(self._bus, self._stream, after=after) as reader:
            yield reader

    @asynccontextmanager
    async def watch(self, job_id: str) -> AsyncGenerator[Subscription]:
        async with self._bus.subscribe(event_subject(job_id)) as feed:
            yield _Watch(feed)


class _Watch:
    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def next(self, timeout_s: float) -> Event | None:
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._feed.get()
        except TimeoutError:
            return None
        return event_in(message)


class JetStreamReader:
    """Follows a stream without a durable consumer. The caller stores the position.

    A lost message causes a gap in the consumer's sequence numbers. After a gap or a failure, a new
    consumer starts after the last event that was returned.
    """

    def __init__(self, bus: Bus, stream: str, *, after: int, batch: int = 500) -> None:
        self._bus = bus
        self._stream = stream
        self._after = after
        self._batch = batch
        self._delivered = 0
        self._puller: Puller | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> JetStreamReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def next(self, timeout_s: float) -> list[Event]:
        """Return the next events, or none if no event arrives in time or the log is unavailable."""
        try:
            puller = self._puller or await self._open()
            messages = await puller.follow(batch=self._batch, timeout_s=timeout_s)
        except LogUnavailable:
            await self._reset()
            await pause(0.4)
            return []
        if not messages:
            if not self._bus.is_connected:
                await self._reset()
            return []
        if [m.consumer_sequence for m in messages] != [
            self._delivered + 1 + i for i in range(len(messages))
        ]:
            await self._reset()
            return []
        self._delivered += len(messages)
        self._after = messages[-1].sequence
        return [event_in(message) for message in messages]

    async def _open(self) -> Puller:
        name = await self._bus.add_follower(self._stream, after=self._after)
        self._puller = await self._stack.enter_async_context(self._bus.puller(self._stream, name))
        self._delivered = 0
        return self._puller

    async def _reset(self) -> None:
        self._puller = None
        await self._stack.aclose()


def event_in(message: Message) -> Event:
    """Return the event in a message of a log. If it cannot be decoded, its data are `Broken`."""
    job_id = job_id_in(message.subject)
    return decode_stored(message.data, job_id=job_id, position=message.sequence)


_IN_FLIGHT = 100
"""The largest number of events that are handled at the same time."""
_PULL_TIMEOUT_S = 10.0
_FAILURE_TIMEOUT_S = 0.5
"""The time-out in seconds of a pull while handlers run. Their errors are noticed after the pull."""
_SPACING_S = 0.01
"""The shortest time in seconds between two pulls, so that one pull can receive several events."""


class EventConsumer:
    """A reader of all events, whose offset NATS stores."""

    def __init__(self, bus: Bus, spec: ConsumerSpec) -> None:
        self._bus = bus
        self._spec = spec
        self._in_flight: dict[asyncio.Task[None], str] = {}
        """The ack subjects of the events that are being handled, by their tasks."""
        self._pulled: deque[Message] = deque()
        """The messages that wait until fewer events are in flight."""

    async def run(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        """Pass every event to `handle`, at least once, until cancelled.

        Several calls run at the same time, and begin in log order. An event is acknowledged after
        its call has returned.
        """
        await keep_trying(lambda: self._consume(handle), on=LogUnavailable)

    async def _consume(self, handle: Callable[[Event], Awaitable[None]]) -> None:
        await self._bus.ensure_consumer(self._spec)
        async with self._bus.puller(self._spec.stream, self._spec.name) as puller:
            try:
                while True:
                    timeout_s = _FAILURE_TIMEOUT_S if self._in_flight else _PULL_TIMEOUT_S
                    self._pulled.extend(await puller.follow(batch=_IN_FLIGHT, timeout_s=timeout_s))
                    began = time.monotonic()
                    while self._pulled:
                        await self._wait_for_capacity()
                        message = self._pulled.popleft()
                        task = asyncio.create_task(self._process(message, handle))
                        self._in_flight[task] = message.ack_subject
                    await self._reap(timeout_s=_SPACING_S)
                    await asyncio.sleep(max(0.0, began + _SPACING_S - time.monotonic()))
            finally:
                # Events that were not handled are returned to the server, which delivers them to
                # the next process at once.
                in_flight, self._in_flight = self._in_flight, {}
                for task in in_flight:
                    task.cancel()
                await asyncio.gather(*in_flight, return_exceptions=True)
                waiting = {message.ack_subject for message in self._pulled}
                self._pulled.clear()
                await self._bus.return_messages(
                    puller, unacknowledged=waiting.union(in_flight.values())
                )

    async def _wait_for_capacity(self) -> None:
        while len(self._in_flight) >= _IN_FLIGHT:
            await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
            await self._reap(timeout_s=0)

    async def _reap(self, *, timeout_s: float) -> None:
        """Wait until all events are handled, up to `timeout_s`. Raise the error of a handler."""
        if self._in_flight:
            done, _ = await asyncio.wait(self._in_flight, timeout=timeout_s)
            for task in done:
                task.result()
                del self._in_flight[task]

    async def _process(self, message: Message, handle: Callable[[Event], Awaitable[None]]) -> None:
        await handle(event_in(message))
        # The acknowledgement is not confirmed. If it is lost, the event is delivered again, which a
        # handler must always expect.
        await self._bus.publish(message.ack_subject, b"+ACK")


_CONTENTS_BATCH = 64
"""The largest number of messages in memory at the same time. Each may have a megabyte."""
_CONTENTS_TIMEOUT_S = 2.0


class LogContents:
    """All stored messages of a log, even if they cannot be decoded.

    A read changes nothing, and counts as no delivery.
    """

    def __init__(self, bus: Bus, log: JetStreamLog, *, stream: str, subjects: str) -> None:
        """`subjects` is the pattern of the subjects of one partition."""
        self._bus = bus
        self._stream = stream
        self._subjects = subjects
        self._log = log

    async def job_ids(self) -> AsyncGenerator[list[str]]:
        """Yield the ids of all jobs with messages, once each, in pages. Raises LogUnavailable."""
        for partition in range(PARTITIONS):
            subjects = self._subjects.format(partition)
            async for page in self._bus.pages(self._stream, subjects):
                yield [job_id_in(subject) for subject in page]

    async def read_raw(self, job_ids: Collection[str]) -> dict[str, tuple[StoredEvent, ...]]:
        """See `EventLog.read_raw`."""
        return await self._log.read_raw(job_ids)

    async def following(self, offset: int) -> list[StoredEvent]:
        """Return the first messages after `offset`, in order; none if there is no later message.

        Raises LogUnavailable.
        """
        messages = await self._bus.batch(
            self._stream,
            self._subjects.format("*"),
            after=offset,
            count=_CONTENTS_BATCH,
            timeout_s=_CONTENTS_TIMEOUT_S,
        )
        # An empty answer means that there is no later message, that the replica lags, or that no
        # answer came in time.
        if not messages:
            first = await self._bus.first(self._stream, self._subjects.format("*"), after=offset)
            messages = [] if first is None else [first]
        return [StoredEvent(each.sequence, each.data) for each in messages]

    async def last_sequence(self) -> int:
        """Return the offset of the last message ever stored, or 0. Raises LogUnavailable."""
        return await self._bus.last_sequence(self._stream)


def log_contents(bus: Bus) -> LogContents:
    return LogContents(bus, JetStreamLog(bus), stream=JOBS, subjects="jobs.{}.*")


def delivery_contents(bus: Bus) -> LogContents:
    log = JetStreamLog(bus, stream=DELIVERIES, subject_of=delivery_subject)
    return LogContents(bus, log, stream=DELIVERIES, subjects="deliveries.{}.*")
